"""Writes tiny random models, as GGUF files and as Hugging Face directories of the same weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from gguf_values import add_value, interleave, write_out
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint

N_HEADS, N_KV_HEADS, HEAD_DIM = 4, 2, 16
HIDDEN, FFN, LAYERS, VOCAB = 48, 64, 2, 96
EXPECTED_SHAPES = {"Q": (N_HEADS * HEAD_DIM, HIDDEN), "K": (N_KV_HEADS * HEAD_DIM, HIDDEN)}


@dataclass
class TinyModel:
    """A model's config.json and its tensors under Hugging Face names."""

    model_type: str = "llama"
    tied: bool = False
    bias: bool = False
    head_norms: bool = False
    extra_config: dict[str, Any] = field(default_factory=dict)
    drop_config: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "architectures": [f"{self.model_type.title()}ForCausalLM"],
            "model_type": self.model_type,
            "hidden_size": HIDDEN,
            "intermediate_size": FFN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": N_HEADS,
            "num_key_value_heads": N_KV_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": VOCAB,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        config |= self.extra_config
        return {key: value for key, value in config.items() if key not in self.drop_config}

    def tensors(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(7)

        def matrix(*shape: int) -> np.ndarray:
            return random.standard_normal(shape, dtype=np.float32)

        queries, keys = N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM
        tensors = {
            "model.embed_tokens.weight": matrix(VOCAB, HIDDEN),
            "model.norm.weight": matrix(HIDDEN),
        }
        if not self.tied:
            tensors["lm_head.weight"] = matrix(VOCAB, HIDDEN)
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}."
            tensors |= {
                prefix + "input_layernorm.weight": matrix(HIDDEN),
                prefix + "post_attention_layernorm.weight": matrix(HIDDEN),
                prefix + "self_attn.q_proj.weight": matrix(queries, HIDDEN),
                prefix + "self_attn.k_proj.weight": matrix(keys, HIDDEN),
                prefix + "self_attn.v_proj.weight": matrix(keys, HIDDEN),
                prefix + "self_attn.o_proj.weight": matrix(HIDDEN, queries),
                prefix + "mlp.gate_proj.weight": matrix(FFN, HIDDEN),
                prefix + "mlp.up_proj.weight": matrix(FFN, HIDDEN),
                prefix + "mlp.down_proj.weight": matrix(HIDDEN, FFN),
            }
            if self.bias:
                tensors |= {
                    prefix + "self_attn.q_proj.bias": matrix(queries),
                    prefix + "self_attn.k_proj.bias": matrix(keys),
                    prefix + "self_attn.v_proj.bias": matrix(keys),
                }
            if self.head_norms:
                tensors |= {
                    prefix + "self_attn.q_norm.weight": matrix(HEAD_DIM),
                    prefix + "self_attn.k_norm.weight": matrix(HEAD_DIM),
                }
        return tensors


FAMILIES = {
    "llama": TinyModel("llama"),
    "llama-tied": TinyModel("llama", tied=True),
    "mistral": TinyModel("mistral", extra_config={"sliding_window": None}),
    "qwen2": TinyModel("qwen2", tied=True, bias=True),
    "qwen3": TinyModel("qwen3", tied=True, head_norms=True),
}


def write_directory(folder: Path, model: TinyModel, shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config()))
    tensors = model.tensors()
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        weight_map |= dict.fromkeys(part, file)
        save_file(part, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def write_gguf(
    path: Path,
    model: TinyModel,
    metadata: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
    quantize: gguf.GGMLQuantizationType | None = None,
) -> Path:
    config = model.config()
    arch = {"mistral": "llama"}.get(model.model_type, model.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for key, value in (metadata or {}).items():
        add_value(writer, key, value)
    for name, tensor in model.tensors().items():
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = interleave(tensor, N_HEADS if "q_proj" in name else N_KV_HEADS)
        if quantize is not None and tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            data = gguf.quants.quantize(tensor, quantize)
            writer.add_tensor(gguf_name(name), data, raw_dtype=quantize)
        else:
            writer.add_tensor(gguf_name(name), tensor)
    for name, tensor in (extra_tensors or {}).items():
        writer.add_tensor(name, tensor)
    write_out(writer)
    return path


def error_of(path: Path) -> str | None:
    """Open and read everything; return the message of a ModelFileError, pass on any other."""
    try:
        with open_checkpoint(path) as checkpoint:
            for tensor in checkpoint.tensors:
                assert len(bytes(tensor.data)) == len(tensor.data)
    except ModelFileError as error:
        return str(error)
    return None
