"""Common parts of files with recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    Layer,
)
from lanewise.loading.base.recurrences import State
from lanewise.loading.families.common import n_layers_of
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

# The first part of a layer: attention or a state.
Mixer = Attention | State


def layers_of(
    mixers: Mapping[str, Mixer], kinds: Sequence[str], ffns: Sequence[Gated | Experts]
) -> list[Layer]:
    """Return a layer for each of ``kinds``, which are keys of ``mixers``, with its FFN."""
    made: dict[tuple[str, Gated | Experts], Layer] = {}
    return [
        made.setdefault((kind, ffn), layer_of(mixers[kind], ffn))
        for kind, ffn in zip(kinds, ffns, strict=True)
    ]


def layer_of(mixer: Mixer, ffn: Gated | Experts | None) -> Layer:
    """Return a layer of attention or of a state."""
    if isinstance(mixer, Attention):
        return Layer(mixer, ffn)
    return Layer(None, ffn, state=mixer)


def own_kinds(
    file: ModelFile,
    key: str,
    accepted: Sequence[str],
    n_layers: int,
    default: Sequence[str] | None = None,
) -> list[str]:
    """Return the kinds of all layers, by the family's own names."""
    kinds = file.raw(key)
    if kinds is None and default is not None:
        return list(default)
    is_list = isinstance(kinds, list) and len(kinds) == n_layers
    if not is_list or not all(kind in accepted for kind in kinds):
        raise file.fail(key, f"{n_layers} times {' or '.join(map(repr, accepted))}")
    return list(kinds)


def every_nth(n_layers: int, step: int, kinds: tuple[str, str]) -> list[str]:
    """Return the second kind for every ``step``-th layer and the first one for the others."""
    return [kinds[(number + 1) % step == 0] for number in range(n_layers)]


def gguf_heads(file: ModelFile) -> tuple[ModelFile, list[bool]]:
    """Return a GGUF file with one number of heads, and the layers with attention.

    Layers with 0 KV heads have no attention; all others must have the same number.
    """
    name, n_layers = "num_key_value_heads", n_layers_of(file)
    counts = file.raw(name)
    if not isinstance(counts, list):
        raise file.fail(name, "a number for each layer, 0 where it has a state,")
    known = [count for count in counts if count != 0]
    if len(counts) != n_layers or not known or known != known[:1] * len(known):
        raise file.fail(name, f"{n_layers} numbers, 0 or one other")
    return file.replacing({name: known[0]}), [count != 0 for count in counts]


def check_no_bias(file: ModelFile, *keys: str) -> None:
    """Raise ModelFileError for biases that a program cannot have."""
    for key in keys:
        if file.flag(key, default=False):
            raise file.fail(key, "false (these biases are not supported)")


def give(tensors: Rearranged, name: str, role: Role, layer: int) -> None:
    """Rename a layer's tensor."""
    tensors.rename(name, tensors.usual(role, layer))


def give_conv(tensors: Rearranged, name: str, state: State | None, layer: int) -> None:
    """Make one vector of the taps of all channels, which are rows in the file."""
    tensors.ravel(name, None if state is None else state.taps)
    give(tensors, name, Role.STATE_CONV, layer)
