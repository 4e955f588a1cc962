"""Fields that published configs have for nothing, by the case whose model they must not change."""

from __future__ import annotations

from published_configs import Config

# Of training tools, in any config.
OF_TOOLS: Config = {
    "neftune_noise_alpha": 5.0,
    "gradient_checkpointing": True,
    "keys_to_ignore_at_inference": ["past_key_values"],
    "unsloth_fixed": True,
    "a_field_of_tomorrow": {"x": [1.5]},
}
POOLER: Config = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}
SUMMARY: Config = {"n_special": 0, "predict_special_tokens": True, "summary_type": "cls_index"}

# Of a directory's config.json: Qwen2.5-0.5B and DeepSeek-R1-Distill-Qwen, Qwen3-Coder, Gemma 2 9B,
# GPT-2 medium to XL, Apertus, StarCoder2 7B, Nemotron-H 56B, and others as published.
OF_DECODERS: dict[str, Config] = {
    "qwen2": {"use_mrope": False},
    "qwen3_moe": {"use_qk_norm": True, "shared_expert_intermediate_size": 0},
    "gemma2": {"sliding_window_size": 4096, "cache_implementation": "hybrid"},
    "gpt2": SUMMARY | {"n_ctx": 1024},
    "apertus": {"qk_norm": True, "post_norm": False, "mlp_type": "xielu"},
    "starcoder2": {"activation_function": "gelu", "norm_type": "layer_norm"},
    "nemotron_h": {"time_step_rank": 512, "mamba_ssm_cache_dtype": "float32"},
    "llama": {"final_logit_softcapping": 30.0, "pretraining_tp": 2, "rope_interleaved": False},
    "llama_yarn": OF_TOOLS,
    "mistral": {"use_sliding_window": True, "max_window_layers": 28},
    "mixtral": {"router_z_loss_coef": 0.001},
    "qwen3": {"use_mrope": True, "mrope_section": [16, 24, 24]},
    "phi3": {"embed_layer_norm": True, "full_attn_mod": 1, "interpolate_factor": 1},
    "granite": {"normalization_function": "rmsnorm", "n_special": 0},
    "gemma": {"query_pre_attn_scalar": 256},
    "olmo2": {"clip_qkv": 8.0, "rope_full_precision": True},
    "stablelm": {"norm_eps": 1e-3, "rotary_scaling_factor": 2.0},
    "phi": {"layer_norm_epsilon": 1e-3, "n_head_kv": None},
    "falcon": {"n_special": 0, "apply_residual_connection_post_layernorm": True},
    "gpt_neox": {"hidden_bias": True, "weight_tying": True},
    "smollm3": {"max_window_layers": 0, "pretraining_tp": 2},
    "glm4_moe": {"rope_ratio": 4.0, "head_scale": 2.0},
}
# Of models that are pooled: bert-base-chinese and what is made of it, such as bge-large-zh.
OF_ENCODERS: dict[str, Config] = {"bert": POOLER | {"classifier_activation": "tanh"}}
