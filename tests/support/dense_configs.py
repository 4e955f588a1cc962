"""The config.json of the long tail of dense families, as family_configs has those of others."""

from __future__ import annotations

import math

from config_parts import GRANITE, HEAD, HIDDEN, Config, published, without

LAYER_NORM: Config = {"layer_norm_eps": 1e-5}
GEMMA: Config = {
    "head_dim": 24,
    "attention_bias": False,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": None,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
GEMMA3: Config = GEMMA | {
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 7,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000.0,
    "sliding_window": 9,
    "sliding_window_pattern": 6,
}
GLM: Config = {
    "head_dim": 24,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "pad_token_id": 1,
    "rms_norm_eps": 1.5625e-07,
}


def layer_norms(kind: str, cls: str, *parts: Config, **own: object) -> Config:
    """A config of a family that has no RMSNorm."""
    return without(published(kind, cls, *parts, **own), "rms_norm_eps")


DENSE_CASES: dict[str, Config] = {
    "gemma": published("gemma", "Gemma", GEMMA),
    "gemma3": without(published("gemma3_text", "Gemma3", GEMMA3), "hidden_act"),
    "glm": published("glm", "Glm", GLM, head_dim=16),
    "glm4": published("glm4", "Glm4", GLM),
    "arcee": published(
        "arcee",
        "Arcee",
        head_dim=24,
        attention_bias=False,
        hidden_act="relu2",
        mlp_bias=False,
        rope_scaling={
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_type": "yarn",
        },
    ),
    "internlm3": published(
        "internlm3",
        "InternLM3",
        head_dim=24,
        bias=False,
        qkv_bias=False,
        pad_token_id=1,
        rope_scaling={"factor": 6.0, "rope_type": "dynamic"},
    ),
    "nemotron": layer_norms(
        "nemotron",
        "Nemotron",
        head_dim=16,
        attention_bias=False,
        hidden_act="relu2",
        mlp_bias=False,
        norm_eps=1e-5,
        partial_rotary_factor=0.5,
    ),
    "starcoder2": layer_norms(
        "starcoder2",
        "Starcoder2",
        attention_softmax_in_fp32=True,
        embedding_dropout=0.1,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_epsilon=1e-5,
        mlp_type="default",
        norm_epsilon=1e-5,
        norm_type="layer_norm",
        residual_dropout=0.1,
        scale_attention_softmax_in_fp32=True,
        scale_attn_weights=True,
        sliding_window=None,
        tie_word_embeddings=True,
        use_bias=True,
    ),
    "stablelm": layer_norms(
        "stablelm",
        "StableLm",
        LAYER_NORM,
        hidden_dropout=0.0,
        partial_rotary_factor=0.25,
        qk_layernorm=False,
        use_parallel_residual=False,
        use_qkv_bias=True,
    ),
}
MINICPM: Config = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
DENSE_CASES["minicpm"] = published(
    "minicpm", "MiniCPM", MINICPM, rope_scaling=None, tie_word_embeddings=False
)
# What transformers computes in the place of families whose code it does not have.
STAND_INS: dict[str, Config] = {
    "minicpm": published(
        "granite",
        "Granite",
        GRANITE,
        attention_multiplier=HEAD**-0.5,
        embedding_multiplier=12.0,
        logits_scaling=HIDDEN / 16,
        residual_multiplier=1.4 / math.sqrt(2),
        tie_word_embeddings=False,
    )
}
DENSE_VARIANTS: dict[str, tuple[str, Config]] = {
    "starcoder2_window": ("starcoder2", {"sliding_window": 9, "use_bias": False}),
    "stablelm_plain": ("stablelm", {"use_qkv_bias": False}),
    "nemotron_bias": ("nemotron", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "gemma3_pattern": ("gemma3", {"sliding_window_pattern": 2, "num_hidden_layers": 3}),
    "glm4_yarn": (
        "glm4",
        {
            "rope_scaling": {
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_type": "yarn",
            }
        },
    ),
}
