"""NomicBERT: BERT with RoPE and SwiGLU, without biases of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lanewise.loading.families.common import check_values, curve
from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.encoders_gguf import gguf_encoder, gguf_tensors
from lanewise.loading.families.rotary_encoders import hf_tensors, rotary_model
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Gated, ModelConfig
from lanewise.loading.sources import Sources

# The fields of NomicBERT's own config.json, under the names of others; and what the rest must say.
OWN_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
MUST_BE: Mapping[str, tuple[object, ...]] = {
    "prenorm": (False,),
    "parallel_block": (False,),
    "parallel_block_tied_norm": (False,),
    "causal": (False,),
    "use_rms_norm": (False, None),
    "rotary_emb_fraction": (1.0, 1),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "rotary_scaling_factor": (None,),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "num_experts": (0, 1, None),
    "scale_attn_weights": (True,),
    "reorder_and_upcast_attn": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "activation_function": ("swiglu",),
}
HARMLESS = (
    *("fused_bias_fc", "fused_dropout_add_ln", "use_xentropy", "pad_vocab_size_multiple"),
    *("max_trained_positions", "dense_seq_output", "last_layer_subset", "attn_pdrop", "embd_pdrop"),
    *("resid_pdrop", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj", "sequence_parallel", "layer_norm_training_hint"),
)


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json, of transformers' form or that of its makers."""
    if "n_embd" not in fields.values:
        return _model(fields, sources)
    check_values(fields, MUST_BE)
    fields.ignore(*OWN_NAMES)
    values = {OWN_NAMES.get(key, key): value for key, value in fields.values.items()}
    usual = Fields(values, fields.source)
    config = _model(usual, sources)
    fields.ignore(*(set(values) - set(usual.unread())))
    return config


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    ffn = Gated(fields.integer("nomic-bert.feed_forward_length"))
    return gguf_encoder(fields, sources, "nomic_bert", ffn, theta=1000.0)


def _model(fields: Fields, sources: Sources) -> ModelConfig:
    ffn = Gated(fields.integer("intermediate_size"), activation=curve(fields, "hidden_act", "silu"))
    return rotary_model(fields, sources, "nomic_bert", ffn, bias=False, theta=1000.0)


FAMILY = replace(
    encoder_family("nomic_bert", from_hf, hf_tensors, HARMLESS),
    gguf="nomic-bert",
    from_gguf=from_gguf,
    gguf_tensors=gguf_tensors,
)
