"""Granite 4: Mamba 2 in place of most layers' attention, experts, four multipliers."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.names import GGUF
from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    ModelConfig,
)
from lanewise.loading.base.recurrences import Ssd
from lanewise.loading.families import granitemoe, mamba2
from lanewise.loading.families.common import check_activation, gated_of, model_of, n_layers_of
from lanewise.loading.families.experts import experts_of, flatten_gguf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.granite import scaled_attention_of, with_multipliers
from lanewise.loading.families.naming import usual
from lanewise.loading.families.states import Mixer, gguf_heads, give, layers_of, own_kinds
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

# Both spellings of layers' kinds.
KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    attention, kinds = gguf_attention(file) if file.is_gguf else hf_attention(file)
    state = mamba2.state_of(file, inner_size(file))
    mixers: dict[str, Mixer] = {"mamba": state, "attention": attention}
    ffn = gguf_ffn(file) if file.is_gguf else hf_ffn(file)
    layers = layers_of(mixers, kinds, [ffn] * len(kinds))
    return with_multipliers(model_of(file, "granitemoehybrid", layers, own_kinds=True), file)


def hf_attention(file: ModelFile) -> tuple[Attention, list[str]]:
    """Return attention, and each layer's kind, from a config.json."""
    n_layers = n_layers_of(file)
    key = "layers_block_type" if file.is_set("layers_block_type") else "layer_types"
    found = own_kinds(file, key, tuple(KINDS), n_layers, ["mamba"] * n_layers)
    position = file.text("position_embedding_type", default="nope")
    if position not in ("nope", "rope"):
        raise file.fail("position_embedding_type", "'nope' or 'rope'")
    attention = scaled_attention_of(file)
    if position == "nope":
        attention = replace(attention, rope=None)
    return attention, [KINDS[kind] for kind in found]


def gguf_attention(file: ModelFile) -> tuple[Attention, list[str]]:
    """Return the same from a GGUF file, whose layers with KV heads have attention."""
    attending, has_attention = gguf_heads(file)
    kinds = ["attention" if attends else "mamba" for attends in has_attention]
    return scaled_attention_of(attending), kinds


def inner_size(file: ModelFile) -> int | None:
    """Return the inner size that a config.json implies."""
    if file.is_gguf:
        return None
    return file.integer("mamba_expand") * file.integer("hidden_size")


def hf_ffn(file: ModelFile) -> Gated | Experts:
    """Return experts beside a shared one, or the shared one alone."""
    check_activation(file)
    shared = file.integer("shared_intermediate_size")
    n = file.integer("num_local_experts", least=0)
    used = file.integer("num_experts_per_tok", least=min(n, 1))
    size = file.integer("intermediate_size")
    if n == 0:
        return Gated(shared)
    return Experts(n=n, n_used=used, size=size, router="top_softmax", shared_size=shared)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
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
    """Return the roles of gate, up and down of the shared FFN that all layers have."""
    if isinstance(config.layers[number].ffn, Experts):
        return Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN
    return Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN


def shared_size(config: ModelConfig, number: int) -> int:
    """Return the inner size of the shared FFN."""
    ffn = config.layers[number].ffn
    return ffn.shared_size if isinstance(ffn, Experts) else config.ffn_size(number)


def gguf_ffn(file: ModelFile) -> Gated | Experts:
    """Return experts, or a gated FFN whose size its tensors tell."""
    if file.has(Role.ROUTER):
        return experts_of(file, "top_softmax", renormalize=False)
    unused = "{arch}.expert_shared_feed_forward_length"
    file.ignore("num_experts", "num_experts_per_tok", unused)
    gate = file.tensors.get(usual(Role.FFN_GATE, column=GGUF))
    gated = gated_of(file)
    return gated if gate is None else replace(gated, size=gate.shape[0])


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
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
