"""NomicBERT: BERT with RoPE, and SwiGLU without biases.

Version 2 has BERT's FFN with biases, and experts in every second layer: without gates, and with one
bias for all, added once to their weighted sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Experts, Gated, ModelConfig, Plain
from lanewise.loading.families import rotary_encoders
from lanewise.loading.families.common import check_values, curve
from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.encoders_gguf import gguf_encoder, gguf_tensors
from lanewise.loading.families.experts import (
    experts_of,
    first_sparse_layer,
    flatten_gguf_experts,
    layers_of_experts,
)
from lanewise.loading.families.rotary_encoders import rotary_model
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

NAME = "nomic_bert"
THETA = 1000.0  # if no field says
# NomicBERT's own config.json keys for these fields.
OWN_KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
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
    "scale_attn_weights": (True,),
    "reorder_and_upcast_attn": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "expert_choice_router": (False, None),
    "num_shared_experts": (0, None),
    "moe_normalize_expert_weights": (False, None),
    "ffn_div": (1, 1.0),
}
GATED = {"swiglu": "silu", "geglu": "gelu"}
EXPERTS_BIAS = "mlp.experts.bias"  # one for all experts of a layer


def program(file: ModelFile) -> ModelConfig:
    """Read a file; a config.json has transformers' form or its makers' form."""
    if file.is_gguf:
        return gguf_encoder(file, NAME, Gated(file.integer("intermediate_size")), theta=THETA)
    if "n_embd" not in file.values:
        activation = curve(file, "hidden_act", "silu")
        ffn = Gated(file.integer("intermediate_size"), activation=activation)
        return rotary_model(file, NAME, ffn, bias=False, theta=THETA)
    check_values(file, MUST_BE)
    return _own_model(file.called(OWN_KEYS))


def moe_program(file: ModelFile) -> ModelConfig:
    """Read a GGUF file of version 2, whose experts mostly have no bias."""
    ffn = Plain(file.integer("intermediate_size"), file.has(Role.FFN_UP_BIAS))
    config = gguf_encoder(file, NAME, ffn, theta=THETA)
    first = first_sparse_layer(file)
    if first == 0:
        return config
    every = file.integer("moe_every_n_layers")
    down_bias = file.has(Role.FFN_DOWN_BIAS, first)
    experts = experts_of(
        *(file, "softmax", False), gated=False, activation="gelu", down_bias=down_bias
    )
    return with_experts(config, experts, every)


def _own_model(file: ModelFile) -> ModelConfig:
    ffn, bias = _own_ffn(file), file.flag("qkv_proj_bias", default=True)
    config = rotary_model(file, NAME, ffn, bias=bias, theta=THETA)
    n = file.integer("num_experts", default=0, least=0)
    every = file.integer("moe_every_n_layers", default=0, least=0)
    used = file.integer("moe_top_k", default=1)
    if n < 2 or every == 0:
        return config
    if not isinstance(ffn, Plain):
        raise file.fail("activation_function", "'gelu' of a model with experts")
    experts = Experts(
        n=n,
        n_used=used,
        size=ffn.size,
        router="softmax",
        activation=ffn.activation,
        gated=False,
        down_bias=any(name.endswith(EXPERTS_BIAS) for name in file.tensors),
    )
    return with_experts(config, experts, every)


def _own_ffn(file: ModelFile) -> Gated | Plain:
    """Return the FFN of layers without experts."""
    size, name = (
        file.integer("intermediate_size"),
        file.text("activation_function", default="gelu"),
    )
    first, second = (
        file.flag(f"mlp_fc{number}_bias", default=name not in GATED) for number in (1, 2)
    )
    if name not in GATED:
        if first and not second:
            raise file.fail("mlp_fc2_bias", "true, as mlp_fc1_bias is true,")
        activation = curve(file, "activation_function", "gelu")
        return Plain(size, first, activation, down_bias=second and not first)
    if first:
        raise file.fail("mlp_fc1_bias", f"false of {name}")
    return Gated(size, activation=GATED[name], down_bias=second)


def with_experts(config: ModelConfig, experts: Experts, every: int) -> ModelConfig:
    """Return a model with experts in every ``every``-th layer."""
    layers = (
        replace(layer, ffn=experts) if number % every == 1 else layer
        for number, layer in enumerate(config.layers)
    )
    return replace(config, layers=tuple(layers))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, experts included."""
    rotary_encoders.hf_tensors(tensors, config)
    for number, experts in layers_of_experts(config):
        folder = f"layers.{number}"
        names = {role: tensors.usual(role, number) for role in (Role.EXPERTS_UP, Role.EXPERTS_DOWN)}
        tensors.rename(f"{folder}.mlp.router.layer.weight", tensors.usual(Role.ROUTER, number))
        tensors.rename(f"{folder}.mlp.experts.mlp.w1", names[Role.EXPERTS_UP])
        down = f"{folder}.mlp.experts.mlp.w2"  # [experts * size, hidden]
        tensors.fold(down, experts.n)
        tensors.transpose_experts(down)
        tensors.flatten(down, names[Role.EXPERTS_DOWN])
        tensors.rename(f"{folder}.{EXPERTS_BIAS}", tensors.usual(Role.FFN_DOWN_BIAS, number))


def moe_gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename as for all encoders, and make matrices of experts."""
    gguf_tensors(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = encoder_family(NAME, program, hf_tensors, "nomic-bert", gguf_tensors=gguf_tensors)
MOE = replace(FAMILY, gguf="nomic-bert-moe", program=moe_program, gguf_tensors=moe_gguf_tensors)
