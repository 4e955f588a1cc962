"""The config.json of each family of encoders as its makers publish it, with a tiny model's sizes.

Where transformers does not read that, the case is as transformers writes it, and PUBLISHED has it.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

SIZES: Config = {
    "vocab_size": 256,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 300,
    "initializer_range": 0.02,
    "torch_dtype": "float32",
}
BERT: Config = SIZES | {
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "use_cache": True,
}
ROBERTA: Config = BERT | {
    "model_type": "xlm-roberta",
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "output_past": True,
}
ONE_LABEL: Config = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
MODERN: Config = SIZES | {
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 1,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 2,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "initializer_cutoff_factor": 2.0,
    "layer_norm_eps": 1e-05,
    "local_attention": 16,
    "local_rope_theta": 10000.0,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "norm_bias": False,
    "norm_eps": 1e-05,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "sep_token_id": 2,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
}
NOMIC: Config = {
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "bos_token_id": None,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "eos_token_id": None,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 48,
    "n_head": 4,
    "n_inner": 80,
    "n_layer": 2,
    "n_positions": 300,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "torch_dtype": "float32",
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 256,
}
GEMMA: Config = SIZES | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "_sliding_window_pattern": 6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
    "pad_token_id": 0,
    "query_pre_attn_scalar": 16,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 8,
    "use_bidirectional_attention": True,
    "use_cache": True,
}
QWEN3: Config = SIZES | {
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_window_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
}
TWO_LABELS: Config = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
ROTARY: Config = SIZES | {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 1}


def _of(base: Config, architecture: str, **changes: Any) -> Config:
    return base | {"architectures": [architecture]} | changes


CASES: dict[str, Config] = {
    "bert": _of(BERT, "BertModel"),
    "bert_tanh": _of(BERT, "BertModel", hidden_act="gelu_new"),
    "bert_reranker": _of(BERT, "BertForSequenceClassification", **ONE_LABEL),
    "roberta": _of(ROBERTA, "RobertaModel", model_type="roberta"),
    "xlm_roberta": _of(ROBERTA, "XLMRobertaModel"),
    "xlm_roberta_reranker": _of(ROBERTA, "XLMRobertaForSequenceClassification", **ONE_LABEL),
    "modernbert": _of(MODERN, "ModernBertModel"),
    "modernbert_biases": _of(
        MODERN, "ModernBertModel", norm_bias=True, attention_bias=True, mlp_bias=True
    ),
    "modernbert_reranker": _of(MODERN, "ModernBertForSequenceClassification", **ONE_LABEL),
    "nomic_bert": _of(
        ROTARY,
        "NomicBertModel",
        model_type="nomic_bert",
        hidden_act="silu",
        type_vocab_size=2,
        rope_theta=1000.0,
    ),
    "gte": _of(ROTARY, "GteModel", model_type="gte", type_vocab_size=1),
    "gte_reranker": _of(
        ROTARY, "GteForSequenceClassification", model_type="gte", type_vocab_size=1, **ONE_LABEL
    ),
    "embedding_gemma": _of(GEMMA, "Gemma3TextModel"),
    "qwen3_reranker": _of(QWEN3, "Qwen3ForSequenceClassification", **ONE_LABEL),
    "qwen3_classifier": _of(QWEN3, "Qwen3ForSequenceClassification", **TWO_LABELS),
    "jina_embeddings_v3": _of(
        ROTARY, "JinaEmbeddingsV3Model", model_type="jina_embeddings_v3", type_vocab_size=1
    ),
}

PUBLISHED = CASES | {"nomic_bert": _of(NOMIC, "NomicBertModel")}
