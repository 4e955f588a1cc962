"""Parts of configs that the cases of families are made of: the sizes of a tiny model."""

from __future__ import annotations

from typing import Any

VOCAB, HIDDEN, HEAD, CONTEXT = 256, 64, 16, 256

Config = dict[str, Any]

SIZES: Config = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.02,
    "use_cache": True,
    "torch_dtype": "float32",
}
QWEN: Config = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_window_layers": 2}
NO_WINDOW: Config = {"use_sliding_window": False, "sliding_window": None}
QWEN_MOE: Config = QWEN | {
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 3,
    "num_experts": 8,
    "decoder_sparse_step": 1,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
GRANITE: Config = {
    "attention_bias": False,
    "attention_multiplier": 0.125,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 4.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
}


def published(kind: str, cls: str, *parts: Config, **own: Any) -> Config:
    """A config.json as the makers of the family publish it."""
    config: Config = {"architectures": [f"{cls}ForCausalLM"], "model_type": kind} | SIZES
    for part in (*parts, own):
        config |= part
    return config


def without(config: Config, *keys: str) -> Config:
    """A config that lacks some keys."""
    return {key: value for key, value in config.items() if key not in keys}
