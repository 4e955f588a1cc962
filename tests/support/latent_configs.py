"""The config.json of families with latent attention."""

from __future__ import annotations

from config_parts import Config, published, without

HEADS: Config = {
    "kv_lora_rank": 64,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "attention_bias": False,
    "num_hidden_layers": 3,
}
EXPERTS: Config = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "ep_size": 1,
    "seq_aux": True,
    "aux_loss_alpha": 0.001,
    "pretraining_tp": 1,
}
YARN: Config = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 4.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 64,
    "type": "yarn",
}
V3: Config = EXPERTS | {
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
}
LONGROPE: Config = {
    "type": "longrope",
    "long_factor": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "short_factor": [1.0, 1.0, 1.05, 1.1, 1.1, 1.15, 1.2, 1.25],
    "original_max_position_embeddings": 256,
}

LATENT_CASES: dict[str, Config] = {
    "deepseek_v2": published(  # as Lite
        "deepseek_v2",
        "DeepseekV2",
        HEADS,
        EXPERTS,
        q_lora_rank=None,
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
        rope_scaling=YARN,
        routed_scaling_factor=1.0,
        scoring_func="softmax",
        topk_method="greedy",
    ),
    "deepseek_v3": published("deepseek_v3", "DeepseekV3", HEADS, V3),
    "glm4_moe_lite": published(
        "glm4_moe_lite",
        "Glm4MoeLite",
        HEADS,
        without(EXPERTS, "moe_layer_freq", "ep_size", "seq_aux", "aux_loss_alpha"),
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        num_nextn_predict_layers=1,
        partial_rotary_factor=1.0,
        qk_nope_head_dim=24,
        rope_scaling=None,
        rope_theta=1000000.0,
        routed_scaling_factor=1.8,
        topk_method="noaux_tc",
        v_head_dim=64,
    ),
    "minicpm3": published(
        "minicpm3",
        "MiniCPM3",
        HEADS,
        dim_model_base=256,
        qk_nope_head_dim=16,
        rope_scaling=LONGROPE,
        scale_depth=1.4,
        scale_emb=12,
        v_head_dim=32,
    ),
    "youtu": published(
        "youtu",
        "Youtu",
        HEADS,
        rope_interleave=True,
        rope_scaling=None,
        rope_theta=1600000.0,
        tie_word_embeddings=True,
    ),
    "mistral4": published(
        "mistral4",
        "Mistral4",
        without(HEADS, "attention_bias"),
        without(EXPERTS, "moe_layer_freq", "ep_size", "seq_aux", "aux_loss_alpha"),
        first_k_dense_replace=0,
        head_dim=48,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        rope_interleave=True,
        rope_parameters=YARN
        | {
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16,
            "partial_rotary_factor": 1 / 3,
            "rope_theta": 10000.0,
            "rope_type": "yarn",
        },
        routed_scaling_factor=1.0,
    ),
}

LATENT_VARIANTS: dict[str, tuple[str, Config]] = {
    "deepseek_v2_groups": (  # as V2 and V2.5
        "deepseek_v2",
        {
            "n_group": 4,
            "q_lora_rank": 64,
            "routed_scaling_factor": 16.0,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
        },
    ),
}
