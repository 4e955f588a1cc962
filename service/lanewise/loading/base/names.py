"""The names of tensors and fields in both kinds of file, and which tensors are vectors."""

from __future__ import annotations

from collections.abc import Mapping

from lanewise.loading.base.checkpoint import Role

# Role to tensor name in GGUF and in Hugging Face files; {} is the layer. Packed files use the
# second column whatever the family's own names are.
TENSOR_NAMES: Mapping[Role, tuple[str, str]] = {
    Role.TOKEN_EMBEDDING: ("token_embd.weight", "model.embed_tokens.weight"),
    Role.OUTPUT: ("output.weight", "lm_head.weight"),
    Role.OUTPUT_NORM: ("output_norm.weight", "model.norm.weight"),
    Role.OUTPUT_BIAS: ("output.bias", "lm_head.bias"),
    Role.PER_LAYER_EMBEDDING: (
        "per_layer_token_embd.weight",
        "model.embed_tokens_per_layer.weight",
    ),
    Role.PER_LAYER_PROJECTION: (
        "per_layer_model_proj.weight",
        "model.per_layer_model_projection.weight",
    ),
    Role.PER_LAYER_NORM: (
        "per_layer_proj_norm.weight",
        "model.per_layer_projection_norm.weight",
    ),
    Role.STREAMS_IN: ("altup_proj.weight", "model.altup_projections.weight"),
    Role.STREAMS_OUT: ("altup_unembd_proj.weight", "model.altup_unembed_projections.weight"),
    Role.HYPER_HEAD: ("output_hc_fn.weight", "model.hc_head.fn"),
    Role.HYPER_HEAD_BASE: ("output_hc_base.weight", "model.hc_head.base"),
    Role.HYPER_HEAD_SCALE: ("output_hc_scale.weight", "model.hc_head.scale"),
    Role.OUTPUT_NORM_BIAS: ("output_norm.bias", "model.norm.bias"),
    Role.POSITION_EMBEDDING: ("position_embd.weight", "model.embed_positions.weight"),
    Role.TOKEN_TYPE_EMBEDDING: ("token_types.weight", "model.embed_token_types.weight"),
    Role.PATCHES: ("v.patch_embd.weight", "model.patches.weight"),
    Role.PATCHES_BIAS: ("v.patch_embd.bias", "model.patches.bias"),
    Role.MEAN_SHIFT: ("v.std_bias", "model.mean_shift"),
    Role.MEAN_SCALE: ("v.std_scale", "model.mean_scale"),
    Role.PATCHES_NORM: ("v.pre_ln.weight", "model.patches_norm.weight"),
    Role.PATCHES_NORM_BIAS: ("v.pre_ln.bias", "model.patches_norm.bias"),
    Role.PATCHES_INPUT_NORM: ("v.patch_norm.weight", "model.patch_values_norm.weight"),
    Role.PATCHES_INPUT_NORM_BIAS: ("v.patch_norm.bias", "model.patch_values_norm.bias"),
    Role.DENSE_INPUT_NORM: ("dense_input_norm.{}.weight", "model.dense_input_norm.{}.weight"),
    Role.DENSE_INPUT_NORM_BIAS: ("dense_input_norm.{}.bias", "model.dense_input_norm.{}.bias"),
    Role.DENSE: ("dense.{}.weight", "model.dense.{}.weight"),
    Role.DENSE_BIAS: ("dense.{}.bias", "model.dense.{}.bias"),
    Role.DENSE_NORM: ("dense_norm.{}.weight", "model.dense_norm.{}.weight"),
    Role.DENSE_NORM_BIAS: ("dense_norm.{}.bias", "model.dense_norm.{}.bias"),
} | {
    role: (f"blk.{{}}.{gguf}", f"model.layers.{{}}.{hf}")
    for role, (gguf, hf) in {
        Role.ATTN_NORM: ("attn_norm.weight", "input_layernorm.weight"),
        Role.CLAMPS: ("clamps", "clamps"),
        Role.ATTN_NORM_BIAS: ("attn_norm.bias", "input_layernorm.bias"),
        Role.FFN_NORM_BIAS: ("ffn_norm.bias", "post_attention_layernorm.bias"),
        Role.ATTN_RESULT_NORM: ("post_attention_norm.weight", "self_attn.result_norm.weight"),
        Role.FFN_RESULT_NORM: ("post_ffw_norm.weight", "mlp.result_norm.weight"),
        Role.PER_LAYER_GATE: ("inp_gate.weight", "per_layer_input_gate.weight"),
        Role.PER_LAYER_OUT: ("proj.weight", "per_layer_projection.weight"),
        Role.PER_LAYER_RESULT_NORM: ("post_norm.weight", "post_per_layer_input_norm.weight"),
        Role.STREAM_NORM: ("altup_router_norm.weight", "altup.router_norm.weight"),
        Role.STREAM_ROUTER: ("altup_router.weight", "altup.modality_router.weight"),
        Role.STREAM_PREDICTION: ("altup_predict_coef.weight", "altup.prediction_coefs.weight"),
        Role.STREAM_CORRECTION: ("altup_correct_coef.weight", "altup.correction_coefs.weight"),
        Role.STREAM_SCALE: ("altup_correct_scale.weight", "altup.correct_output_scale"),
        Role.LAUREL_DOWN: ("laurel_l.weight", "laurel.linear_left.weight"),
        Role.LAUREL_UP: ("laurel_r.weight", "laurel.linear_right.weight"),
        Role.LAUREL_NORM: ("laurel_post_norm.weight", "laurel.post_laurel_norm.weight"),
        Role.MTP_EMBEDDING_NORM: ("nextn.enorm.weight", "enorm.weight"),
        Role.MTP_HIDDEN_NORM: ("nextn.hnorm.weight", "hnorm.weight"),
        Role.MTP_PROJECTION: ("nextn.eh_proj.weight", "eh_proj.weight"),
        Role.MTP_NORM: ("nextn.shared_head_norm.weight", "shared_head.norm.weight"),
        Role.HEAD_FUSION: ("head_fusion.weight", "head.fusion.weight"),
        Role.HEAD_FUSION_NORM: ("head_fusion_norm.weight", "head.fusion_norm.weight"),
        Role.HEAD_OUTPUT: ("head_output.weight", "head.output.weight"),
        Role.HEAD_RETURN: ("head_return.weight", "head.return.weight"),
        Role.HEAD_TOKENS: ("head_tokens", "head.tokens"),
        Role.HEAD_EMBEDDING: ("head_embd.weight", "head.embed_tokens.weight"),
        Role.ATTN_Q: ("attn_q.weight", "self_attn.q_proj.weight"),
        Role.ATTN_K: ("attn_k.weight", "self_attn.k_proj.weight"),
        Role.ATTN_V: ("attn_v.weight", "self_attn.v_proj.weight"),
        Role.ATTN_Q_BIAS: ("attn_q.bias", "self_attn.q_proj.bias"),
        Role.ATTN_K_BIAS: ("attn_k.bias", "self_attn.k_proj.bias"),
        Role.ATTN_V_BIAS: ("attn_v.bias", "self_attn.v_proj.bias"),
        Role.ATTN_Q_NORM: ("attn_q_norm.weight", "self_attn.q_norm.weight"),
        Role.ATTN_K_NORM: ("attn_k_norm.weight", "self_attn.k_norm.weight"),
        Role.ATTN_SINKS: ("attn_sinks.weight", "self_attn.sinks"),
        Role.ATTN_DISTANCES: ("attn_distances.weight", "self_attn.distances"),
        Role.ATTN_POSITION_KEYS: ("attn_position_k.weight", "self_attn.position_keys"),
        Role.ATTN_POSITION_QUERIES: ("attn_position_q.weight", "self_attn.position_queries"),
        Role.ATTN_INNER_NORM: ("attn_sub_norm.weight", "self_attn.attn_sub_norm.weight"),
        Role.ATTN_OUTPUT: ("attn_output.weight", "self_attn.o_proj.weight"),
        Role.ATTN_OUTPUT_BIAS: ("attn_output.bias", "self_attn.o_proj.bias"),
        Role.LATENT_QUERY: ("attn_q_a.weight", "self_attn.q_a_proj.weight"),
        Role.LATENT_QUERY_NORM: ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
        Role.LATENT_DOWN: ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"),
        Role.LATENT_NORM: ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
        Role.LATENT_KEYS: ("attn_k_b.weight", "self_attn.k_b_proj.weight"),
        Role.LATENT_VALUES: ("attn_v_b.weight", "self_attn.v_b_proj.weight"),
        Role.INDEX_QUERY: ("indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"),
        Role.INDEX_QUERY_NORM: ("indexer.q_norm.weight", "self_attn.indexer.q_norm.weight"),
        Role.INDEX_KEY: ("indexer.attn_k.weight", "self_attn.indexer.wk.weight"),
        Role.INDEX_KEY_NORM: ("indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"),
        Role.INDEX_KEY_NORM_BIAS: ("indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"),
        Role.INDEX_WEIGHTS: ("indexer.proj.weight", "self_attn.indexer.weights_proj.weight"),
        Role.COMPRESS_ROWS: ("attn_compressor_kv.weight", "self_attn.compressor.kv_proj.weight"),
        Role.COMPRESS_GATE: (
            "attn_compressor_gate.weight",
            "self_attn.compressor.gate_proj.weight",
        ),
        Role.COMPRESS_POSITIONS: ("attn_compressor_ape.weight", "self_attn.compressor.positions"),
        Role.COMPRESS_NORM: ("attn_compressor_norm.weight", "self_attn.compressor.norm.weight"),
        Role.INDEX_ROWS: ("indexer_compressor_kv.weight", "self_attn.indexer.kv_proj.weight"),
        Role.INDEX_GATE: ("indexer_compressor_gate.weight", "self_attn.indexer.gate_proj.weight"),
        Role.INDEX_POSITIONS: ("indexer_compressor_ape.weight", "self_attn.indexer.positions"),
        Role.INDEX_NORM: ("indexer_compressor_norm.weight", "self_attn.indexer.norm.weight"),
        Role.ATTN_GROUPS: ("attn_output_a.weight", "self_attn.o_groups.weight"),
        Role.HYPER_ATTN: ("hc_attn_fn.weight", "attn_hc.fn"),
        Role.HYPER_ATTN_BASE: ("hc_attn_base.weight", "attn_hc.base"),
        Role.HYPER_ATTN_SCALE: ("hc_attn_scale.weight", "attn_hc.scale"),
        Role.HYPER_FFN: ("hc_ffn_fn.weight", "ffn_hc.fn"),
        Role.HYPER_FFN_BASE: ("hc_ffn_base.weight", "ffn_hc.base"),
        Role.HYPER_FFN_SCALE: ("hc_ffn_scale.weight", "ffn_hc.scale"),
        Role.ROUTER_TABLE: ("ffn_gate_tid2eid.weight", "mlp.gate.experts_of_tokens"),
        Role.FFN_NORM: ("ffn_norm.weight", "post_attention_layernorm.weight"),
        Role.FFN_GATE: ("ffn_gate.weight", "mlp.gate_proj.weight"),
        Role.FFN_UP: ("ffn_up.weight", "mlp.up_proj.weight"),
        Role.FFN_INNER_NORM: ("ffn_sub_norm.weight", "mlp.ffn_sub_norm.weight"),
        Role.FFN_DOWN: ("ffn_down.weight", "mlp.down_proj.weight"),
        Role.FFN_GATE_BIAS: ("ffn_gate.bias", "mlp.gate_proj.bias"),
        Role.FFN_UP_BIAS: ("ffn_up.bias", "mlp.up_proj.bias"),
        Role.FFN_DOWN_BIAS: ("ffn_down.bias", "mlp.down_proj.bias"),
        Role.ROUTER: ("ffn_gate_inp.weight", "mlp.gate.weight"),
        Role.ROUTER_BIAS: ("ffn_gate_inp.bias", "mlp.gate.bias"),
        Role.ROUTER_CHOICE_BIAS: ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        Role.EXPERTS_IN: ("ffn_latent_down.weight", "mlp.experts.in_proj.weight"),
        Role.EXPERTS_OUT: ("ffn_latent_up.weight", "mlp.experts.out_proj.weight"),
        Role.EXPERTS_GATE: ("ffn_gate_exps.weight", "mlp.experts.gate_proj.weight"),
        Role.EXPERTS_UP: ("ffn_up_exps.weight", "mlp.experts.up_proj.weight"),
        Role.EXPERTS_DOWN: ("ffn_down_exps.weight", "mlp.experts.down_proj.weight"),
        Role.EXPERTS_GATE_BIAS: ("ffn_gate_exps.bias", "mlp.experts.gate_proj.bias"),
        Role.EXPERTS_UP_BIAS: ("ffn_up_exps.bias", "mlp.experts.up_proj.bias"),
        Role.EXPERTS_DOWN_BIAS: ("ffn_down_exps.bias", "mlp.experts.down_proj.bias"),
        Role.SHARED_GATE: ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
        Role.SHARED_UP: ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
        Role.SHARED_DOWN: ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
        Role.ROUTER_NORM: ("ffn_gate_inp.scale", "mlp.gate.norm.weight"),
        Role.EXPERTS_NORM: ("pre_ffw_norm_2.weight", "mlp.experts.norm.weight"),
        Role.SHARED_RESULT_NORM: (
            "post_ffw_norm_1.weight",
            "mlp.shared_expert.result_norm.weight",
        ),
        Role.EXPERTS_RESULT_NORM: ("post_ffw_norm_2.weight", "mlp.experts.result_norm.weight"),
        Role.ROUTER_SCALES: ("ffn_down_exps.scale", "mlp.gate.scales"),
        Role.SHARED_ROUTER: ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
        # Names in GGUF files of Mamba 2; other families' names are changed to these.
        Role.ATTN_GATE: ("attn_output_gate.weight", "self_attn.gate_proj.weight"),
        Role.STATE_IN: ("ssm_in.weight", "state.in_proj.weight"),
        Role.STATE_KEYS: ("ssm_in_k.weight", "state.key_proj.weight"),
        Role.STATE_VALUES: ("ssm_in_v.weight", "state.value_proj.weight"),
        Role.STATE_GATE: ("ssm_gate.weight", "state.gate_proj.weight"),
        Role.STATE_GATE_DOWN: ("ssm_g_a.weight", "state.gate_down_proj.weight"),
        Role.STATE_DECAY: ("ssm_alpha.weight", "state.decay_proj.weight"),
        Role.STATE_DECAY_DOWN: ("ssm_f_a.weight", "state.decay_down_proj.weight"),
        Role.STATE_BETA: ("ssm_beta.weight", "state.beta_proj.weight"),
        Role.STATE_CONV: ("ssm_conv1d.weight", "state.conv.weight"),
        Role.STATE_CONV_BIAS: ("ssm_conv1d.bias", "state.conv.bias"),
        Role.STATE_DECAY_BIAS: ("ssm_dt.bias", "state.decay_proj.bias"),
        Role.STATE_RATE: ("ssm_a", "state.rate"),
        Role.STATE_SKIP: ("ssm_d", "state.skip"),
        Role.STATE_NORM: ("ssm_norm.weight", "state.norm.weight"),
        Role.STATE_OUT: ("ssm_out.weight", "state.out_proj.weight"),
        Role.ATTN_INPUT_ORDER: ("attn_input_order", "self_attn.input_order"),
        Role.ATTN_OUTPUT_ORDER: ("attn_output_order", "self_attn.output_order"),
        Role.FFN_INPUT_ORDER: ("ffn_input_order", "mlp.input_order"),
    }.items()
}
GGUF, HF = 0, 1  # columns of TENSOR_NAMES
LAYERS = ("blk.", "model.layers.")  # before the layer number in tensor names

# A field's name in config.json to its key in GGUF metadata; {arch} is general.architecture.
# Different config names for one thing share the key. GGUF files have no other fields.
FIELD_NAMES: Mapping[str, str] = {
    name: f"{{arch}}.{key}"
    for name, key in {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "max_position_embeddings": "context_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "layer_norm_eps": "attention.layer_norm_epsilon",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "attention_value_scale": "attention.value_scale",
        "sliding_window": "attention.sliding_window",
        "attention_multiplier": "attention.scale",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "clip_qkv": "attention.clamp_kqv",
        "num_kv_shared_layers": "attention.shared_kv_layers",
        "kv_lora_rank": "attention.kv_lora_rank",
        "q_lora_rank": "attention.q_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "index_n_heads": "attention.indexer.head_count",
        "index_head_dim": "attention.indexer.key_length",
        "index_topk": "attention.indexer.top_k",
        "index_topk_blocks": "attention.indexer.top_k",
        "index_block_size": "attention.indexer.block_size",
        "index_local_blocks": "attention.indexer.local_blocks",
        "indexer_types": "attention.indexer.types",
        "o_groups": "attention.output_group_count",
        "o_lora_rank": "attention.output_lora_rank",
        "compress_ratios": "attention.compress_ratios",
        "compress_rope_theta": "attention.compress_rope_freq_base",
        "hc_mult": "hyper_connection.count",
        "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations",
        "hc_eps": "hyper_connection.epsilon",
        "num_hash_layers": "hash_layer_count",
        "intermediate_size": "feed_forward_length",
        "hidden_activation": "hidden_activation",
        "use_parallel_residual": "use_parallel_residual",
        "num_experts": "expert_count",
        "num_local_experts": "expert_count",
        "n_routed_experts": "expert_count",
        "moe_num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "top_k_experts": "expert_used_count",
        "moe_k": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "moe_every_n_layers": "moe_every_n_layers",
        "moe_latent_size": "moe_latent_size",
        "norm_topk_prob": "expert_weights_norm",
        "routed_scaling_factor": "expert_weights_scale",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "ffn_hidden_size": "feed_forward_length",
        "conv_L_cache": "shortconv.l_cache",
        "mamba_n_heads": "ssm.time_step_rank",
        "mamba_n_groups": "ssm.group_count",
        "mamba_d_state": "ssm.state_size",
        "mamba_d_conv": "ssm.conv_kernel",
        "linear_num_value_heads": "ssm.time_step_rank",
        "linear_num_key_heads": "ssm.group_count",
        "linear_key_head_dim": "ssm.state_size",
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
        "logit_scale": "logit_scale",
        "output_multiplier": "logit_scale",
        "final_logit_softcapping": "final_logit_softcapping",
        "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    }.items()
}
# Fields for which 0 in a GGUF file means that the file does not say.
ZERO_SAYS_NOTHING = {
    *("attention_multiplier", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"),
    *("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"),
    *("routed_scaling_factor", "n_group", "topk_group", "attention_value_scale"),
}
# Fields for which a GGUF file may have a list with a value for each layer.
PER_LAYER = {
    *("num_attention_heads", "num_key_value_heads", "intermediate_size", "ffn_hidden_size"),
}

BIASES = (Role.ATTN_Q_BIAS, Role.ATTN_K_BIAS, Role.ATTN_V_BIAS)
ORDERS = (Role.ATTN_INPUT_ORDER, Role.ATTN_OUTPUT_ORDER, Role.FFN_INPUT_ORDER)  # optional


def is_vector(role: Role) -> bool:
    """Whether a role's tensor is a vector, stored with one dimension."""
    return (
        role in ORDERS
        or role in (Role.ATTN_SINKS, Role.ATTN_DISTANCES, Role.SHARED_ROUTER, Role.ROUTER_SCALES)
        or role in (Role.ATTN_POSITION_KEYS, Role.ATTN_POSITION_QUERIES)
        or role in (Role.STREAM_ROUTER, Role.STREAM_PREDICTION)
        or role in (Role.STREAM_CORRECTION, Role.STREAM_SCALE)
        or role in (Role.MEAN_SHIFT, Role.MEAN_SCALE, Role.CLAMPS, Role.HEAD_TOKENS)
        or role in (Role.STATE_CONV, Role.STATE_RATE, Role.STATE_SKIP)
        or role in (Role.ROUTER_TABLE, Role.COMPRESS_POSITIONS, Role.INDEX_POSITIONS)
        or role in (Role.HYPER_ATTN_BASE, Role.HYPER_ATTN_SCALE, Role.HYPER_FFN_BASE)
        or role in (Role.HYPER_FFN_SCALE, Role.HYPER_HEAD_BASE, Role.HYPER_HEAD_SCALE)
        or role.name.endswith(("NORM", "BIAS"))
    )
