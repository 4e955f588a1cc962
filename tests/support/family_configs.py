"""The config.json of each family as its makers publish it, with the sizes of a tiny model."""

from __future__ import annotations

from config_parts import (
    CONTEXT,
    GRANITE,
    HEAD,
    NO_WINDOW,
    QWEN,
    QWEN_MOE,
    Config,
    published,
)
from dense_configs import DENSE_CASES, DENSE_VARIANTS
from latent_configs import LATENT_CASES, LATENT_VARIANTS
from state_configs import STATE_CASES
from wired_configs import WIRED_CASES, WIRED_VARIANTS

YARN: Config = {"factor": 4.0, "original_max_position_embeddings": 64}
ERNIE: Config = {
    "head_dim": 24,
    "use_bias": False,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "num_hidden_layers": 3,
}
NOT_MXFP4 = [
    "model.layers.*.self_attn",
    "model.layers.*.mlp.router",
    "model.embed_tokens",
    "lm_head",
]
PHI: Config = {
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attention_bias": False,
    "pad_token_id": 1,
}


def longrope(rotated: int) -> Config:
    """Factors for an original context of 32, so that the long ones are taken."""
    half = rotated // 2
    return {
        "original_max_position_embeddings": 32,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0 + 0.25 * i for i in range(half)],
            "short_factor": [1.0 + 0.125 * i for i in range(half)],
        },
    }


CASES: dict[str, Config] = STATE_CASES | {
    "qwen3_moe": published(
        "qwen3_moe",
        "Qwen3Moe",
        QWEN_MOE | NO_WINDOW,
        head_dim=24,
        attention_bias=False,
        mlp_only_layers=[],
        norm_topk_prob=True,
    ),
    "qwen3_moe_dense": published(
        "qwen3_moe",
        "Qwen3Moe",
        QWEN_MOE | NO_WINDOW,
        head_dim=24,
        num_hidden_layers=3,
        attention_bias=False,
        mlp_only_layers=[1],
        norm_topk_prob=False,
    ),
    "gpt_oss": published(
        "gpt_oss",
        "GptOss",
        num_hidden_layers=4,
        head_dim=24,
        intermediate_size=32,
        num_local_experts=8,
        num_experts_per_tok=4,
        experts_per_token=4,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention"] * 2,
        attention_bias=True,
        swiglu_limit=7.0,
        rope_theta=150000,
        initial_context_length=64,
        rope_scaling=YARN
        | {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        output_router_logits=False,
        router_aux_loss_coef=0.9,
    ),
    "mixtral": published(
        "mixtral",
        "Mixtral",
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
        rope_theta=1e6,
        output_router_logits=False,
        router_aux_loss_coef=0.02,
        router_jitter_noise=0.0,
    ),
    "llama": published("llama", "Llama", attention_bias=True, mlp_bias=True),
    "llama_yarn": published(
        "llama",
        "Llama",
        head_dim=24,
        rope_scaling=YARN | {"rope_type": "yarn", "beta_fast": 16.0, "beta_slow": 2.0},
    ),
    "llama_linear": published("llama", "Llama", rope_scaling={"type": "linear", "factor": 2.5}),
    "llama_dynamic": published("llama", "Llama", rope_scaling={"type": "dynamic", "factor": 2.0}),
    "mistral": published("mistral", "Mistral", sliding_window=9),
    "ministral3": published(
        "ministral3",
        "Ministral3",
        head_dim=24,
        sliding_window=None,
        rope_parameters=YARN
        | {
            "type": "yarn",
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "original_max_position_embeddings": 16,
            "factor": 16.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    ),
    "qwen2": published("qwen2", "Qwen2", QWEN | NO_WINDOW, max_window_layers=28),
    "qwen2_windows": published(
        "qwen2",
        "Qwen2",
        QWEN,
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=1,
    ),
    "qwen3": published(
        "qwen3",
        "Qwen3",
        QWEN | NO_WINDOW,
        head_dim=24,
        attention_bias=False,
        rope_scaling=YARN | {"rope_type": "yarn"},
        tie_word_embeddings=True,
    ),
    "qwen3_windows": published(
        "qwen3",
        "Qwen3",
        QWEN,
        head_dim=24,
        num_hidden_layers=3,
        attention_bias=False,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=1,
    ),
    "qwen2_moe": published(
        "qwen2_moe",
        "Qwen2Moe",
        QWEN_MOE | NO_WINDOW,
        max_window_layers=28,
        shared_expert_intermediate_size=64,
        norm_topk_prob=False,
    ),
    "qwen2_moe_sparse": published(
        "qwen2_moe",
        "Qwen2Moe",
        QWEN_MOE,
        num_hidden_layers=4,
        decoder_sparse_step=2,
        shared_expert_intermediate_size=32,
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=2,
    ),
    "olmoe": published(
        "olmoe",
        "Olmoe",
        attention_bias=False,
        clip_qkv=None,
        norm_topk_prob=False,
        num_experts=8,
        num_experts_per_tok=3,
        output_router_logits=False,
        rope_scaling=None,
        router_aux_loss_coef=0.01,
    ),
    "granite": published("granite", "Granite", GRANITE | {"mlp_bias": False}),
    "granitemoe": published(
        "granitemoe",
        "GraniteMoe",
        GRANITE,
        num_local_experts=8,
        num_experts_per_tok=3,
        output_router_logits=False,
        router_aux_loss_coef=0.0,
    ),
    "ernie4_5": published("ernie4_5", "Ernie4_5", ERNIE),
    "ernie4_5_moe": published(
        "ernie4_5_moe",
        "Ernie4_5_Moe",
        {key: value for key, value in ERNIE.items() if key != "head_dim"},
        moe_num_experts=8,
        moe_k=3,
        moe_intermediate_size=32,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
        moe_layer_end_index=-1,
        moe_layer_interval=1,
        moe_capacity=[64, 64, 64],
        moe_use_aux_free=True,
        moe_gate="topk",
    ),
    "glm4_moe": published(
        "glm4_moe",
        "Glm4Moe",
        num_hidden_layers=3,
        head_dim=24,
        attention_bias=True,
        use_qk_norm=True,
        partial_rotary_factor=0.5,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        first_k_dense_replace=1,
        num_nextn_predict_layers=1,
        rope_scaling=None,
    ),
    "glm4_moe_groups": published(
        "glm4_moe",
        "Glm4Moe",
        attention_bias=False,
        use_qk_norm=False,
        partial_rotary_factor=0.5,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        routed_scaling_factor=2.5,
        first_k_dense_replace=0,
        rope_scaling=None,
    ),
    "phi3": published("phi3", "Phi3", PHI, rope_scaling=None, sliding_window=9),
    "phi3_longrope": published("phi3", "Phi3", PHI, longrope(HEAD), sliding_window=CONTEXT),
    "phi3_partial": published(
        "phi3",
        "Phi3",
        PHI,
        longrope(12),
        partial_rotary_factor=0.75,
        sliding_window=CONTEXT,
        tie_word_embeddings=True,
    ),
    "smollm3": published(
        "smollm3",
        "SmolLM3",
        NO_WINDOW,
        num_hidden_layers=4,
        attention_bias=False,
        mlp_bias=False,
        layer_types=["full_attention"] * 4,
        max_window_layers=28,
        no_rope_layer_interval=4,
        no_rope_layers=[1, 1, 1, 0],
        pad_token_id=1,
        rope_scaling=None,
        rope_theta=5e6,
        tie_word_embeddings=True,
    ),
    "seed_oss": published(
        "seed_oss",
        "SeedOss",
        head_dim=24,
        attention_bias=True,
        attention_out_bias=False,
        mlp_bias=False,
        residual_dropout=0.1,
        rope_scaling={"rope_type": "default"},
        rope_theta=1e7,
    ),
}

CASES |= DENSE_CASES | WIRED_CASES | LATENT_CASES

# What published models seldom have, but the families' code reads.
VARIANTS: dict[str, tuple[str, Config]] = {
    "qwen3_next_dense": ("qwen3_next", {"mlp_only_layers": [1], "num_hidden_layers": 2}),
    "mixtral_window": ("mixtral", {"sliding_window": 9}),
    "qwen3_moe_window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 9}),
    "smollm3_window": (
        "smollm3",
        {
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "gpt_oss_limit": ("gpt_oss", {"swiglu_limit": 1.5}),  # which random gates exceed
    "granite_bias": ("granite", {"attention_bias": True, "mlp_bias": True}),
    "granitemoe_bias": ("granitemoe", {"attention_bias": True}),
    "ernie4_5_bias": ("ernie4_5", {"use_bias": True}),
    "olmoe_clip": ("olmoe", {"clip_qkv": 0.75}),
    "olmoe_norm": ("olmoe", {"norm_topk_prob": True, "attention_bias": True}),
    "seed_oss_bias": ("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    "qwen3_bias": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    "glm4_moe_yarn": ("glm4_moe", {"rope_scaling": YARN | {"rope_type": "yarn"}}),
}
# As the published files of gpt-oss are: experts in blocks of MXFP4, which the test's files have.
VARIANTS["gpt_oss_mxfp4"] = (
    "gpt_oss",
    {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": NOT_MXFP4}},
)
VARIANTS |= DENSE_VARIANTS | WIRED_VARIANTS | LATENT_VARIANTS
CASES |= {name: CASES[plain] | changes for name, (plain, changes) in VARIANTS.items()}
