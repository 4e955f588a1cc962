"""Kimi Linear: Kimi Delta Attention beside latent attention without positions, sigmoid experts."""

from __future__ import annotations

from collections.abc import Mapping

from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import ModelConfig, Rope
from lanewise.loading.base.recurrences import ChannelDelta
from lanewise.loading.families.common import check_activation, check_values, model_of, n_layers_of
from lanewise.loading.families.deepseek_v3 import first_sparse_of
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    routed_experts_of,
    sparse_from,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.kimi_delta import (
    KINDS,
    NAMES,
    delta_layers,
    gguf_delta_tensors,
    hf_delta_tensors,
    without_positions,
)
from lanewise.loading.families.latent import gguf_latent_tensors, latent_attention_of
from lanewise.loading.families.states import gguf_heads, own_kinds
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

STEP = 4  # by default every layer of such a number has attention, but the first
LISTS = ("kda_layers", "full_attn_layers")  # numbers from 1 of the layers of each of KINDS
SETTINGS = "linear_attn_config"
MUST_BE = {
    "moe_router_activation_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "mla_use_nope": (True,),
}
# What Kimi K3 has besides, in its config and in SETTINGS, and what it would change.
OF_K3 = {
    "attn_res_block_size": "layers that attend to the results of blocks before them",
    "routed_expert_hidden_size": "experts in a space of their own with a norm",
    "latent_moe_use_norm": "a norm of experts' space",
    "mla_use_output_gate": "an output gate of latent attention",
}
OF_K3_STATES = {
    "gate_lower_bound": "a bound of decays",
    "use_full_rank_gate": "a gate of full rank",
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    if file.is_gguf:
        file.ignore("{arch}.rope.freq_base")  # which nothing turns by
        attending, has_attention = gguf_heads(file)
        kinds = [KINDS[attends] for attends in has_attention]
        state = gguf_state_of(file)
        attention = latent_attention_of(attending)
    else:
        refuse_k3(file)
        check_values(file, MUST_BE)
        file = file.called_if_set(NAMES).called_if_set({"n_routed_experts": "num_experts"})
        state, kinds = hf_state_of(file)
        attention = latent_attention_of(file)
    check_activation(file)
    experts = routed_experts_of(file, "sigmoid", renormalize=True)
    sparse = sparse_from(file, first_sparse_of(file, default=1))
    layers = delta_layers(file, state, without_positions(attention), kinds, experts, sparse)
    context = file.integer("max_position_embeddings")
    ropes = (Rope(1e4, attention.rope_dim),), context  # which no layer has
    return model_of(file, "kimi_linear", layers, own_kinds=True, ropes=ropes)


def gguf_state_of(file: ModelFile) -> ChannelDelta:
    """Return the state that a GGUF file describes; attention has as many heads."""
    heads, dim = file.integer("num_attention_heads"), file.integer("{arch}.kda.head_dim")
    return delta_of(heads, dim, file.integer("linear_conv_kernel_dim"))


def delta_of(heads: int, dim: int, taps: int) -> ChannelDelta:
    """Return a state whose gate and decays are products of ``dim`` values."""
    return ChannelDelta(
        taps=taps,
        n_heads=heads,
        value_dim=dim,
        n_key_heads=heads,
        key_dim=dim,
        decay_rank=dim,
        gate_rank=dim,
    )


def hf_state_of(file: ModelFile) -> tuple[ChannelDelta, list[str]]:
    """Return the state that a config.json describes, and each layer's kind."""
    given = file.raw(SETTINGS)
    if given is not None and not isinstance(given, Mapping):
        raise file.fail(SETTINGS, "an object")
    own = Fields(given or {}, f"{file.source}: {SETTINGS}")
    for key, what in OF_K3_STATES.items():
        if own.raw(key) not in (None, False):
            raise own.fail(key, f"null ({what}, as in Kimi K3, is not supported)")
    heads = own.integer("num_heads", default=file.integer("linear_num_heads", default=32))
    dim = own.integer("head_dim", default=file.integer("linear_head_dim", default=128))
    taps = file.integer("linear_conv_kernel_dim", default=4)
    state = delta_of(heads, dim, own.integer("short_conv_kernel_size", default=taps))
    return state, own_kinds(file, "layer_types", KINDS, n_layers_of(file), kinds_of(own, file))


def kinds_of(own: Fields, file: ModelFile) -> list[str]:
    """Return each layer's kind by the lists of their numbers, or the usual ones."""
    n_layers, lists = n_layers_of(file), [own.raw(key) for key in LISTS]
    if None in lists:
        return [KINDS[number > 0 and number % STEP == 0] for number in range(n_layers)]
    for key, numbers in zip(LISTS, lists, strict=True):
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise own.fail(key, "a list of layers' numbers")
    if sorted(lists[0] + lists[1]) != [*range(1, n_layers + 1)]:
        raise own.fail(LISTS[0], f"with {LISTS[1]}, each number from 1 to {n_layers} once,")
    return [KINDS[number + 1 in lists[1]] for number in range(n_layers)]


def refuse_k3(file: ModelFile) -> None:
    """Raise ModelFileError for a field of Kimi K3 that changes answers; it names all of them."""
    odd = [key for key in OF_K3 if file.raw(key) not in (None, False)]
    if not odd and file.text("hidden_act", default="silu") == "silu":
        return
    states = file.raw(SETTINGS)
    if isinstance(states, Mapping):
        of_states = (key for key in OF_K3_STATES if states.get(key) not in (None, False))
        odd += [f"{SETTINGS}.{key}" for key in of_states]
    first, wanted = "hidden_act", "'silu' (other activations are not supported)"
    if file.text(first, default="silu") == "silu":
        first = odd.pop(0)
        wanted = f"null ({OF_K3[first]}, as in Kimi K3, is not supported)"
    also = f" (also: {', '.join(odd)})" if odd else ""
    raise file.fail(first, wanted + also)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, stack experts; drop the multi-token prediction layers."""
    tensors.drop_layers_from(config.n_layers)
    hf_delta_tensors(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the tensors of states, reshape the matrices of heads and experts."""
    gguf_delta_tensors(tensors, config)
    gguf_latent_tensors(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "kimi_linear",
    program,
    "kimi-linear",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
