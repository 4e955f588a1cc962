"""Tiny random encoders as directories, and the texts that they are compared with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from family_models import Arrays, FamilyModel, model_of
from gguf_values import add_value, interleave, write_out
from published_configs import Config

GOLDEN = Path(__file__).parents[1] / "golden" / "encoders"
# Less than a block, both sides of tiles and windows, more than all of them.
LENGTHS = (1, 7, 32, 33, 65, 200)

Ids = NDArray[np.uint32]


def encoder_model(name: str) -> FamilyModel:
    """Return a case's model, always the same bits."""
    return model_of(name, json.loads((GOLDEN / "encoders.json").read_text())[name])


# Names of tensors in GGUF files, of the public converter.
GGUF_NAMES = {
    r"^(bert|distilbert|roberta|model)\.": "",
    r"^embeddings\.word_embeddings": "token_embd",
    r"^embeddings\.tok_embeddings": "token_embd",
    r"^embeddings\.norm": "token_embd_norm",
    r"^embeddings\.position_embeddings": "position_embd",
    r"^embeddings\.token_type_embeddings": "token_types",
    r"^(embeddings\.LayerNorm|emb_ln)": "token_embd_norm",
    r"^((encoder|transformer)\.)?layers?\.": "blk.",
    r"attention\.(.)_lin": r"attn_\1",
    r"attention\.out_lin": "attn_output",
    r"sa_layer_norm": "attn_output_norm",
    r"output_layer_norm": "layer_output_norm",
    r"attention\.self\.(.)\w+": r"attn_\1",
    r"(attention\.output\.dense|attn\.out_proj|attn\.Wo)": "attn_output",
    r"(attention\.output\.LayerNorm|norm1)": "attn_output_norm",
    r"(intermediate\.dense|ffn\.lin1|mlp\.fc11?\b|mlp\.Wi|mlp\.gated_layers)": "ffn_up",
    r"mlp\.fc12": "ffn_gate",
    r"(output\.dense|ffn\.lin2|mlp\.fc2|mlp\.wo|mlp\.Wo)": "ffn_down",
    r"(output\.LayerNorm|norm2|mlp\.layernorm)": "layer_output_norm",
    r"mlp_norm": "ffn_norm",
    r"final_norm": "output_norm",
    r"attn\.Wqkv": "attn_qkv",
    r"((classifier|head)\.dense|pre_classifier)": "cls",
    r"head\.norm": "cls.norm",
    r"classifier\.out_proj": "cls.output",
    r"^classifier\.(weight|bias)": r"cls.output.\1",
}
GGUF_CASES = {
    "bert": "bert",
    "xlm_roberta_reranker": "bert",
    "distilbert": "bert",
    "distilbert_classifier": "bert",
    "nomic_bert": "nomic-bert",
    "eurobert": "eurobert",
    "llama_both_ways": "llama-embed",
    "modernbert": "modern-bert",
    "modernbert_reranker": "modern-bert",
    "granite_embedding_r2": "modern-bert",
}


LIKE_LLAMA = {
    "eurobert": gguf.MODEL_ARCH.EUROBERT,
    "llama-embed": gguf.MODEL_ARCH.LLAMA_EMBED,
}


def add_llama_metadata(writer: gguf.GGUFWriter, config: Config) -> None:
    """Write what files of Llama's layers say beside what all do."""
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def llama_tensors(model: FamilyModel, arch: str) -> Arrays:
    """Return tensors by GGUF's names; Llama's pairs of RoPE lie side by side there."""
    names = gguf.get_tensor_name_map(LIKE_LLAMA[arch], model.config["num_hidden_layers"])
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    found: Arrays = {}
    for name, array in model.tensors.items():
        part = next((part for part in heads if part in name), None)
        if part is not None and arch == "llama-embed":
            array = interleave(array, model.config[heads[part]])
        found[names.get_name(f"model.{name}", try_suffixes=(".weight",)) or name] = array
    return found


OF_DISTILBERT = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
}


def usual_keys(config: Config) -> Config:
    """Return a config with sizes under the names that most have."""
    found = {new: config[old] for old, new in OF_DISTILBERT.items() if old in config}
    return {"layer_norm_eps": 1e-12} | config | found


def write_gguf(
    model: FamilyModel, arch: str, path: Path, changes: Mapping[str, Any] | None = None
) -> Path:
    """Write a case as the public converter does; ``changes`` are of its metadata.

    None leaves a key out.
    """
    name, writer = model.name, gguf.GGUFWriter(path, arch)
    config = usual_keys(model.config)
    first = config["pad_token_id"] + 1 if "roberta" in name else 0
    writer.add_context_length(config["max_position_embeddings"] - first)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if arch != "llama-embed":
        writer.add_causal_attention(False)
    if arch in LIKE_LLAMA:
        add_llama_metadata(writer, config)
    else:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    rank = gguf.PoolingType.RANK if is_classifier(config) else gguf.PoolingType.MEAN
    writer.add_pooling_type(rank)
    if is_classifier(config) and "id2label" in config:
        writer.add_classifier_output_labels(list(config["id2label"].values()))
    for key, value in (changes or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            add_value(writer, key, value)
    if name == "nomic_bert":
        writer.add_rope_freq_base(1000.0)
    if arch == "nomic-bert-moe":
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["moe_top_k"])
        writer.add_moe_every_n_layers(config["moe_every_n_layers"])
    if arch == "modern-bert":
        angles = config["rope_parameters"]
        writer.add_rope_freq_base(angles["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(angles["sliding_attention"]["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(config["global_attn_every_n_layers"])
        writer.add_vocab_size(config["vocab_size"])
        writer.add_string("modern-bert.hidden_activation", config["hidden_activation"])
        writer.add_layer_norm_rms_eps(config["norm_eps"])  # which nothing reads
    tensors = llama_tensors(model, arch) if arch in LIKE_LLAMA else model.tensors
    for key, array in tensors.items():
        if key.startswith("pooler"):
            continue
        for old, new in GGUF_NAMES.items():
            key = re.sub(old, new, key)
        values = array[first:] if key.startswith("position_embd") else array
        writer.add_tensor(key, values.astype(np.float32))
    write_out(writer)
    return path


def texts_of(lengths: tuple[int, ...] = LENGTHS) -> list[Ids]:
    """Return token ids all over the vocabulary; none is that of padding."""
    return [
        np.array([(37 * i + i * i // 5 + 61 * n) % 251 + 3 for i in range(n)], np.uint32)
        for n in lengths
    ]


def types_of(config: Config, lengths: tuple[int, ...] = LENGTHS) -> list[Ids]:
    """Return token types: the second half of a text is another one, if there are two."""
    two = config.get("type_vocab_size", 1) > 1
    return [(np.arange(n) > n // 2).astype(np.uint32) * np.uint32(two) for n in lengths]


def is_classifier(config: Config) -> bool:
    """Return whether a case has scores, not rows."""
    return "Classification" in config["architectures"][0]
