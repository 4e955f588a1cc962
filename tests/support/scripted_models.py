"""A tiny random model with a published chat template and a published vocabulary.

Its answers mean nothing: ``scripted_serve.py`` says what it says. The template, its control tokens
and a context as long as those of real models are what clients of others meet. Run as a script it
writes one: the folder, the template's file, tokens of the context.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tiny_models import QWEN2_WORDS, Uniform

VOCABULARY = Path(__file__).parents[1] / "data" / "tokenizers" / "ggml-vocab-gpt-2.gguf"
HIDDEN, LAYERS = 16, 1
# What control tokens look like; <function=name> and the like are ordinary text.
MARKS = re.compile(
    r"<\|/?[\w\"-]+\|?>|<\w+\|>|\[/?[A-Zg][A-Z_]*[A-Zk]\]|<(?:start|end)_of_turn>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value|sop|s|bos|eos)>"
)


@dataclass(frozen=True)
class Kind:
    """How a family begins and ends texts."""

    ends: tuple[str, ...]
    bos: str | None = None


KINDS = {
    "<|im_end|>": Kind(("<|im_end|>", "<|endoftext|>")),
    "<end_of_turn>": Kind(("<end_of_turn>", "<eos>"), "<bos>"),
    "<turn|>": Kind(("<turn|>", "<eos>"), "<bos>"),
    "<|return|>": Kind(("<|return|>", "<|call|>")),
    "<|eot_id|>": Kind(("<|eot_id|>", "<|eom_id|>"), "<|begin_of_text|>"),
    "[gMASK]": Kind(("<|endoftext|>", "<|user|>", "<|observation|>")),
    "[/INST]": Kind(("</s>",), "<s>"),
}


def kind_of(template: str) -> Kind:
    """The family of a chat template."""
    return next(kind for mark, kind in KINDS.items() if mark in template)


def marks_of(template: str) -> list[str]:
    """The control tokens of a chat template."""
    kind = kind_of(template)
    return sorted({*MARKS.findall(template), *kind.ends, *filter(None, [kind.bos])})


def tokenizer_of(template: str) -> Tokenizer:
    """GPT-2's 50,257 tokens, and the control tokens of a template."""
    reader = gguf.GGUFReader(VOCABULARY)
    tokens = _strings(reader, "tokenizer.ggml.tokens")
    merges = [tuple(line.split(" ")) for line in _strings(reader, "tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    words = pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    made.decoder = decoders.ByteLevel()
    marks = marks_of(template)
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return made


def _strings(reader: gguf.GGUFReader, name: str) -> list[str]:
    field = reader.fields[name]
    return [bytes(field.parts[place]).decode() for place in field.data]


def write_scripted_model(folder: Path, template: str, context: int) -> Path:
    """Write a Hugging Face directory and return it."""
    folder.mkdir(parents=True)
    tokenizer, kind = tokenizer_of(template), kind_of(template)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    ends = [tokenizer.token_to_id(end) for end in kind.ends]
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": ends[0],
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": kind.ends[0]}
    if kind.bos is not None:
        settings["bos_token"] = kind.bos
    files = {
        "config.json": config,
        "tokenizer_config.json": settings,
        "generation_config.json": {"eos_token_id": ends},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    save_file(_tensors(tokenizer.get_vocab_size()), folder / "model.safetensors")
    return folder


def _tensors(vocab_size: int) -> dict[str, np.ndarray]:
    uniform = Uniform(1)
    tensors = {
        "model.embed_tokens.weight": uniform(vocab_size, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q", "k", "v"):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = uniform(HIDDEN, HIDDEN, std=0.3)
            tensors[f"{prefix}self_attn.{name}_proj.bias"] = np.zeros(HIDDEN, np.float32)
        for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            tensors[f"{prefix}{name}.weight"] = uniform(HIDDEN, HIDDEN, std=0.3)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(HIDDEN, np.float32)
    return tensors


if __name__ == "__main__":
    write_scripted_model(Path(sys.argv[1]), Path(sys.argv[2]).read_text(), int(sys.argv[3]))
