"""Granite 4: Mamba 2 in the place of most layers' attention, experts, four multipliers."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families import granitemoe, mamba2
from lanewise.loading.families.common import check_activation, has, hf_model, hf_n_layers
from lanewise.loading.families.experts import flatten_gguf_experts, gguf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import arch_of, gguf_gated, gguf_model, gguf_n_layers
from lanewise.loading.families.granite import (
    gguf_scaled_attention,
    gguf_with_multipliers,
    scaled_attention,
    with_multipliers,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.families.states import (
    Mixer,
    check_no_bias,
    gguf_heads,
    give,
    layers_of,
    own_kinds,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Experts, Gated, ModelConfig, Ssd
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

# Both spellings of layers' kinds.
KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    key = "layers_block_type" if fields.is_set("layers_block_type") else "layer_types"
    found = own_kinds(fields, key, tuple(KINDS), n_layers, ["mamba"] * n_layers)
    mixers: dict[str, Mixer] = {"mamba": hf_state(fields)}
    position = fields.text("position_embedding_type", default="nope")
    if position not in ("nope", "rope"):
        raise fields.fail("position_embedding_type", "'nope' or 'rope'")
    attention = scaled_attention(fields, sources)
    mixers["attention"] = attention if position == "rope" else replace(attention, rope=None)
    kinds = [KINDS[kind] for kind in found]
    layers = layers_of(mixers, kinds, [hf_ffn(fields)] * n_layers)
    config = hf_model(fields, "granitemoehybrid", layers, own_kinds=True)
    return with_multipliers(config, fields)


def hf_state(fields: Fields) -> Ssd:
    """Return the state that a config describes."""
    mamba2.check_steps(fields)
    check_no_bias(fields, "mamba_proj_bias")
    inner = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
    n_heads = fields.integer("mamba_n_heads", default=128)
    n_key_heads = fields.integer("mamba_n_groups", default=1)
    if fields.raw("mamba_d_head") in (None, "auto"):
        value_dim = inner // n_heads
    else:
        value_dim = fields.integer("mamba_d_head")
    if n_heads * value_dim != inner:
        raise fields.fail("mamba_d_head", f"{inner} divided by the number of heads, {n_heads},")
    return Ssd(
        taps=fields.integer("mamba_d_conv", default=4),
        n_heads=n_heads,
        value_dim=value_dim,
        n_key_heads=n_key_heads,
        key_dim=fields.integer("mamba_d_state", default=256),
        norm_size=inner // n_key_heads,
        conv_bias=fields.flag("mamba_conv_bias", default=True),
    )


def hf_ffn(fields: Fields) -> Gated | Experts:
    """Return experts beside a shared one, or that alone."""
    check_activation(fields)
    shared = fields.integer("shared_intermediate_size", default=1024)
    n = fields.integer("num_local_experts", default=8, least=0)
    used = fields.integer("num_experts_per_tok", default=2, least=min(n, 1))
    size = fields.integer("intermediate_size", default=11008)
    if n == 0:
        return Gated(shared)
    return Experts(n=n, n_used=used, size=size, router="top_softmax", shared_size=shared)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    tensors = Rearranged(granitemoe.hf_tensors(sources, config))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        if isinstance(layer.state, Ssd):
            mamba2.hf_mixer(tensors, f"{folder}.mamba", layer.state, number)
        gate, up, down = gated_roles(config, number)
        size = shared_size(config, number)
        parts = {usual(gate, number): size, usual(up, number): size}
        tensors.split_rows(f"{folder}.shared_mlp.input_linear.weight", parts)
        give(tensors, f"{folder}.shared_mlp.output_linear.weight", down, number)
    return tensors.out


def gated_roles(config: ModelConfig, number: int) -> tuple[Role, Role, Role]:
    """Return what gate, up and down are that all layers have."""
    if isinstance(config.layers[number].ffn, Experts):
        return Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN
    return Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN


def shared_size(config: ModelConfig, number: int) -> int:
    """Return the inner size of what all layers have."""
    ffn = config.layers[number].ffn
    return ffn.shared_size if isinstance(ffn, Experts) else config.ffn_size(number)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    n_layers = gguf_n_layers(fields, sources)
    attending, has_attention = gguf_heads(fields, n_layers)
    mixers: dict[str, Mixer] = {
        "mamba": mamba2.gguf_state(fields, mamba2.has_conv_bias(sources)),
        "attention": gguf_scaled_attention(attending, sources),
    }
    kinds = ["attention" if attends else "mamba" for attends in has_attention]
    layers = layers_of(mixers, kinds, [gguf_ffn(fields, sources)] * n_layers)
    config = gguf_model(fields, sources, "granitemoehybrid", layers)
    return gguf_with_multipliers(config, fields)


def gguf_ffn(fields: Fields, sources: Sources) -> Gated | Experts:
    """Return experts, or a gated layer, whose size its tensors say."""
    if has(sources, Role.ROUTER, GGUF):
        return gguf_experts(fields, sources, "top_softmax", renormalize=False)
    arch = arch_of(fields)
    fields.ignore(
        *(f"{arch}.{name}" for name in ("expert_count", "expert_used_count")),
        f"{arch}.expert_shared_feed_forward_length",
    )
    gate = sources.get(usual(Role.FFN_GATE, column=GGUF))
    gated = gguf_gated(fields, sources)
    return gated if gate is None else replace(gated, size=gate.shape[0])


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    tensors = Rearranged(flatten_gguf_experts(sources, config))
    mamba2.gguf_mixers(tensors, config)
    return tensors.out


FAMILY = Family(
    "granitemoehybrid",
    from_hf,
    "granitehybrid",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    gguf_is_usual=False,
)
