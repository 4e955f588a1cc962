"""Completes a trained checkpoint as a Hugging Face directory and writes it as a Q8_0 GGUF file.

    python export.py hf CHECKPOINT_DIR DATA_DIR HF_DIR
    python export.py gguf HF_DIR lanewise-demo-q8_0.gguf

Needs torch (for the bf16 weights), safetensors and gguf.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

NAME = "lanewise-demo"
DESCRIPTION = "Small language model of English prose that ships with Lanewise to try the server."
# Messages are paragraphs, as in a book: the model knows no other form of dialogue.
CHAT_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}\n\n{% endfor %}"

MATRIX = gguf.GGMLQuantizationType.Q8_0
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a dictionary as JSON."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def export_hf(checkpoint: Path, data: Path, out: Path) -> None:
    """Write weights in bf16, config, tokenizer, chat template and sampling defaults."""
    out.mkdir(parents=True, exist_ok=True)
    weights = load_file(checkpoint / "model.safetensors")
    weights.pop("lm_head.weight", None)  # tied
    halves = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(halves, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    write_json(out / "config.json", config | {"torch_dtype": "bfloat16"})
    shutil.copy(data / "tokenizer.json", out)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(out / "tokenizer_config.json", tokenizer)
    sampling = {"do_sample": True, "temperature": 0.8, "top_p": 0.95}
    write_json(out / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, **sampling})


def interleave_rope(weight: NDArray[np.float32], n_heads: int) -> NDArray[np.float32]:
    """Return Q or K with the rows of each head in the pairwise order of GGUF llama files."""
    rows, cols = weight.shape
    halves = weight.reshape(n_heads, 2, rows // n_heads // 2, cols)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, cols))


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor."""
    if name in NAMES:
        return NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write the sizes and constants of the model."""
    heads = config["num_attention_heads"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    rope = config.get("rope_parameters") or config  # newer configs nest it
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def add_tokenizer(writer: gguf.GGUFWriter, directory: Path) -> None:
    """Write the byte-level BPE tokenizer and the chat template."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(vocab[settings["bos_token"]])
    writer.add_eos_token_id(vocab[settings["eos_token"]])
    writer.add_add_bos_token(True)
    writer.add_chat_template(settings["chat_template"])


def export_gguf(directory: Path, out: Path) -> None:
    """Write matrices as Q8_0, norms as F32, and everything the server needs beside them."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_config(writer, config)
    add_tokenizer(writer, directory)
    for name, tensor in sorted(load_file(directory / "model.safetensors").items()):
        weight = tensor.float().numpy()
        projection = name.split(".")[-2]
        if projection in heads:
            weight = interleave_rope(weight, heads[projection])
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name), weight)
        else:
            writer.add_tensor(gguf_name(name), gguf.quantize(weight, MATRIX), raw_dtype=MATRIX)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Export to one of the two forms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    forms = parser.add_subparsers(dest="form", required=True)
    hf = forms.add_parser("hf", help="checkpoint and tokenizer to a Hugging Face directory")
    hf.add_argument("checkpoint", type=Path)
    hf.add_argument("data", type=Path)
    hf.add_argument("out", type=Path)
    to_gguf = forms.add_parser("gguf", help="Hugging Face directory to a Q8_0 GGUF file")
    to_gguf.add_argument("directory", type=Path)
    to_gguf.add_argument("out", type=Path)
    arguments = parser.parse_args()
    if arguments.form == "hf":
        export_hf(arguments.checkpoint, arguments.data, arguments.out)
    else:
        export_gguf(arguments.directory, arguments.out)


if __name__ == "__main__":
    main()
