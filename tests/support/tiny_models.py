"""Tiny random models of every family, as Hugging Face directories and as GGUF files.

The weights are made from a counter-based integer generator, so they are the same bits on every
machine and nothing has to be committed. Sizes are awkward on purpose: heads, rows and the
vocabulary are no multiples of a vector, and the vocabulary has rows that no token uses.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from gguf_values import add_value, interleave, write_out

Floats = NDArray[np.float32]

SPECIAL_TOKENS = ("<|begin|>", "<|end|>")
BEGIN, END = 0, 1
VOCAB_SIZE = 266
CONTEXT = 256
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
)
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

# Written as in each family's published config.json.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama2": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
    },
    "llama3": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        "tie_word_embeddings": True,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": 7,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 7,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
    },
}
FAMILIES = tuple(CONFIGS)

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@dataclass(frozen=True)
class TinyModel:
    """A model in memory: its config.json and its tensors under their Hugging Face names."""

    family: str
    config: dict[str, Any]
    tensors: dict[str, Floats]


class Uniform:
    """Uniform numbers with 24 exact bits, from the raw output of a generator that never changes."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def __call__(self, *shape: int, std: float = 1.0, mean: float = 0.0) -> Floats:
        raw = np.array(self._bits.random_raw(math.prod(shape)), np.uint64) >> np.uint64(40)
        unit = (raw.astype(np.float64) - 2**23) / 2**23  # [-1, 1)
        return (mean + unit * (std * math.sqrt(3))).astype(np.float32).reshape(shape)


def tiny_model(family: str, **changes: Any) -> TinyModel:
    """Return the model of a family; always the same bits. ``changes`` go into its config."""
    config = {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "torch_dtype": "float32",
        **CONFIGS[family],
        **changes,
    }
    return TinyModel(family, config, dict(_tensors(config, Uniform(FAMILIES.index(family) + 1))))


def _tensors(config: dict[str, Any], uniform: Uniform) -> Iterator[tuple[str, Floats]]:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head = head_dim(config)
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head

    def matrix(rows: int, cols: int) -> Floats:
        return uniform(rows, cols, std=1.5 / math.sqrt(cols))

    yield "model.embed_tokens.weight", uniform(VOCAB_SIZE, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", uniform(hidden, std=0.2, mean=1.0)
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{prefix}self_attn.{name}.weight", matrix(rows, hidden)
            if config["model_type"] == "qwen2":
                yield f"{prefix}self_attn.{name}.bias", uniform(rows, std=0.5)
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                yield f"{prefix}self_attn.{name}.weight", uniform(head, std=0.2, mean=1.2)
        yield prefix + "self_attn.o_proj.weight", matrix(hidden, queries)
        yield prefix + "post_attention_layernorm.weight", uniform(hidden, std=0.2, mean=1.0)
        yield prefix + "mlp.gate_proj.weight", matrix(ffn, hidden)
        yield prefix + "mlp.up_proj.weight", matrix(ffn, hidden)
        yield prefix + "mlp.down_proj.weight", matrix(hidden, ffn)
    yield "model.norm.weight", uniform(hidden, std=0.2, mean=1.0)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", matrix(VOCAB_SIZE, hidden)


def head_dim(config: dict[str, Any]) -> int:
    """Return the size of one attention head."""
    return int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))


def prompt(length: int) -> list[int]:
    """Return token ids that cover the vocabulary, the same for every model."""
    return [BEGIN, *((37 * i + i * i // 5) % (VOCAB_SIZE - 10) + 2 for i in range(1, length))]


def tokenizer(family: str) -> Tokenizer:
    """Return a byte-level tokenizer: the special tokens, then one token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    made = Tokenizer(models.BPE(vocab, []))
    words = QWEN2_WORDS if family.startswith("qwen") else LLAMA3_WORDS
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL_TOKENS))
    made.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL_TOKENS[BEGIN]} $A", special_tokens=[(SPECIAL_TOKENS[BEGIN], BEGIN)]
    )
    return made


def write_hf(model: TinyModel, directory: Path) -> Path:
    """Write a Hugging Face directory and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BEGIN],
        "eos_token": SPECIAL_TOKENS[END],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    stop = {"bos_token_id": BEGIN, "eos_token_id": END}
    for name, content in (
        ("config.json", model.config),
        ("tokenizer_config.json", settings),
        ("generation_config.json", stop),
    ):
        (directory / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    save_file(model.tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer(model.family).save(str(directory / "tokenizer.json"))
    return directory


def write_gguf(
    model: TinyModel,
    path: Path,
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    raw: Mapping[str, tuple[gguf.GGMLQuantizationType, NDArray[np.uint8]]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    more_tokens: Sequence[str] = (),
    scales: Mapping[str, Any] | None = None,
) -> Path:
    """Write a GGUF file, matrices in the given type where their rows allow it, and return it.

    ``raw`` has types and blocks of some tensors, ``metadata`` further keys;
    ``more_tokens`` are the names of some rows of the vocabulary that no token uses, ``scales``
    factors of whole matrices, which GGUF files have beside NVFP4.
    """
    architecture = "llama" if model.family == "mistral" else model.config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny-{model.family}")
    _add_config(writer, model.config, architecture)
    _add_tokenizer(writer, model.family, more_tokens)
    for key, value in (metadata or {}).items():
        add_value(writer, key, value)
    for name, tensor in model.tensors.items():
        weight = tensor
        if raw is not None and name in raw:
            kind, blocks = raw[name]
            writer.add_tensor(gguf_name(name), blocks, raw_dtype=kind)
            continue
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleave(weight, weight.shape[0] // head_dim(model.config))
        if weight.ndim == 2 and matrices != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), gguf.quantize(weight, matrices), raw_dtype=matrices)
        else:
            writer.add_tensor(gguf_name(name), weight)
    for name, scale in (scales or {}).items():
        own = gguf_name(name).removesuffix(".weight")
        writer.add_tensor(f"{own}.scale", np.array([scale], np.float32))
        writer.add_tensor(f"{own}.input_scale", np.ones(1, np.float32))
    if "rope_scaling" in model.config:
        writer.add_tensor("rope_freqs.weight", llama3_rope_factors(model.config))
    write_out(writer)
    return path


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor."""
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{LAYER_NAMES[module]}.{kind}"


def llama3_rope_factors(config: dict[str, Any]) -> Floats:
    """Return the divisors of the RoPE frequencies that Llama 3.1's scaling comes to.

    In float32, in the order of operations of the public converter, whose results files hold;
    torch divides a number by a tensor by multiplying with the reciprocal.
    """
    scaling, head, one = config["rope_scaling"], head_dim(config), np.float32(1)
    factor, low, high, context = (
        np.float32(scaling[key])
        for key in (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        )
    )
    exponents = np.arange(0, head, 2, dtype=np.float32) / np.float32(head)
    powers = (float(config["rope_theta"]) ** exponents.astype(np.float64)).astype(np.float32)
    wavelengths = one / (one / powers) * np.float32(2 * math.pi)
    smooth = (one / wavelengths * context - low) / (high - low)
    blend = one / ((one - smooth) / factor + smooth)
    long = np.where(wavelengths > context / low, factor, blend)
    return np.where(wavelengths < context / high, one, long).astype(np.float32)


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    else:
        writer.add_rope_dimension_count(head_dim(config))
    if config["model_type"] == "mistral":
        writer.add_uint32(f"{architecture}.attention.sliding_window", config["sliding_window"])


def _add_tokenizer(writer: gguf.GGUFWriter, family: str, more_tokens: Sequence[str]) -> None:
    vocab = tokenizer(family).get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL
        for token in tokens
    ]
    unused = VOCAB_SIZE - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if family.startswith("qwen") else "llama-bpe")
    pads = [f"[PAD{len(tokens) + i}]" for i in range(unused)]
    writer.add_token_list([*tokens, *more_tokens, *pads[len(more_tokens) :]])
    writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * unused])
    writer.add_token_merges(["a b"])  # readers want at least one; "ab" is no token, so it is idle
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_text(path: Path, words: int = 2000) -> Path:
    """A text to calibrate on, which takes several tokens a word."""
    numbers = (n * 7919 % 9973 for n in range(words))
    path.write_text(" ".join(f"word {n}," for n in numbers), encoding="utf-8")
    return path
