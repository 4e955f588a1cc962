"""Granite 4: Mamba 2 in the place of most layers' attention, experts, four multipliers."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families import granitemoe, mamba2
from lanewise.loading.families.common import (
    check_activation,
    gated_of,
    model_of,
    n_layers_of,
)
from lanewise.loading.families.experts import experts_of, flatten_gguf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.granite import (
    scaled_attention_of,
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
from lanewise.loading.model_file import ModelFile
from lanewise.loading.names import GGUF
from lanewise.loading.program import Experts, Gated, ModelConfig, Ssd
from lanewise.loading.rearranging import Rearranged

# Both spellings of layers' kinds.
KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    mixers, kinds = gguf_mixers(file) if file.is_gguf else hf_mixers(file)
    ffn = gguf_ffn(file) if file.is_gguf else hf_ffn(file)
    layers = layers_of(mixers, kinds, [ffn] * len(kinds))
    return with_multipliers(model_of(file, "granitemoehybrid", layers, own_kinds=True), file)


def hf_mixers(file: ModelFile) -> tuple[dict[str, Mixer], list[str]]:
    """Return what stands in layers of both kinds of a config.json, and each layer's kind."""
    n_layers = n_layers_of(file)
    key = "layers_block_type" if file.is_set("layers_block_type") else "layer_types"
    found = own_kinds(file, key, tuple(KINDS), n_layers, ["mamba"] * n_layers)
    mixers: dict[str, Mixer] = {"mamba": hf_state(file)}
    position = file.text("position_embedding_type", default="nope")
    if position not in ("nope", "rope"):
        raise file.fail("position_embedding_type", "'nope' or 'rope'")
    attention = scaled_attention_of(file)
    mixers["attention"] = attention if position == "rope" else replace(attention, rope=None)
    return mixers, [KINDS[kind] for kind in found]


def gguf_mixers(file: ModelFile) -> tuple[dict[str, Mixer], list[str]]:
    """Return the same of a GGUF file, whose layers with KV heads attend."""
    attending, has_attention = gguf_heads(file)
    mixers: dict[str, Mixer] = {
        "mamba": mamba2.gguf_state(file),
        "attention": scaled_attention_of(attending),
    }
    return mixers, ["attention" if attends else "mamba" for attends in has_attention]


def hf_state(file: ModelFile) -> Ssd:
    """Return the state that a config describes."""
    mamba2.check_steps(file)
    check_no_bias(file, "mamba_proj_bias")
    inner = file.integer("mamba_expand", default=2) * file.integer("hidden_size")
    n_heads = file.integer("mamba_n_heads", default=128)
    n_key_heads = file.integer("mamba_n_groups", default=1)
    if file.raw("mamba_d_head") in (None, "auto"):
        value_dim = inner // n_heads
    else:
        value_dim = file.integer("mamba_d_head")
    if n_heads * value_dim != inner:
        raise file.fail("mamba_d_head", f"{inner} divided by the number of heads, {n_heads},")
    return Ssd(
        taps=file.integer("mamba_d_conv", default=4),
        n_heads=n_heads,
        value_dim=value_dim,
        n_key_heads=n_key_heads,
        key_dim=file.integer("mamba_d_state", default=256),
        norm_size=inner // n_key_heads,
        conv_bias=file.flag("mamba_conv_bias", default=True),
    )


def hf_ffn(file: ModelFile) -> Gated | Experts:
    """Return experts beside a shared one, or that alone."""
    check_activation(file)
    shared = file.integer("shared_intermediate_size", default=1024)
    n = file.integer("num_local_experts", default=8, least=0)
    used = file.integer("num_experts_per_tok", default=2, least=min(n, 1))
    size = file.integer("intermediate_size", default=11008)
    if n == 0:
        return Gated(shared)
    return Experts(n=n, n_used=used, size=size, router="top_softmax", shared_size=shared)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Give tensors their usual names."""
    granitemoe.hf_tensors(tensors, config)
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        if isinstance(layer.state, Ssd):
            mamba2.hf_mixer(tensors, f"{folder}.mamba", layer.state, number)
        gate, up, down = gated_roles(config, number)
        size = shared_size(config, number)
        parts = {tensors.usual(gate, number): size, tensors.usual(up, number): size}
        tensors.split_rows(f"{folder}.shared_mlp.input_linear.weight", parts)
        give(tensors, f"{folder}.shared_mlp.output_linear.weight", down, number)


def gated_roles(config: ModelConfig, number: int) -> tuple[Role, Role, Role]:
    """Return what gate, up and down are that all layers have."""
    if isinstance(config.layers[number].ffn, Experts):
        return Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN
    return Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN


def shared_size(config: ModelConfig, number: int) -> int:
    """Return the inner size of what all layers have."""
    ffn = config.layers[number].ffn
    return ffn.shared_size if isinstance(ffn, Experts) else config.ffn_size(number)


def gguf_ffn(file: ModelFile) -> Gated | Experts:
    """Return experts, or a gated layer, whose size its tensors say."""
    if file.has(Role.ROUTER):
        return experts_of(file, "top_softmax", renormalize=False)
    unused = "{arch}.expert_shared_feed_forward_length"
    file.ignore("num_experts", "num_experts_per_tok", unused)
    gate = file.tensors.get(usual(Role.FFN_GATE, column=GGUF))
    gated = gated_of(file)
    return gated if gate is None else replace(gated, size=gate.shape[0])


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Give tensors their usual names."""
    flatten_gguf_experts(tensors, config)
    mamba2.gguf_mixers(tensors, config)


FAMILY = Family(
    "granitemoehybrid",
    program,
    "granitehybrid",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    gguf_is_usual=False,
)
