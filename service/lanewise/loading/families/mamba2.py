"""Mamba 2 in place of attention: common parts of the files of its families."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.recurrences import Ssd
from lanewise.loading.families.states import check_no_bias, give, give_conv
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

# JSON's infinity for readers without it, and the largest float32.
INFINITY, MOST = {"__float__": "Infinity"}, 3.4e38


def check_steps(file: ModelFile) -> None:
    """Raise ModelFileError for limits of the steps that a step could reach."""
    limits = file.raw("time_step_limit")
    if limits is None:
        return
    is_pair = isinstance(limits, list) and len(limits) == 2 and limits[0] == 0
    if not is_pair or not (
        limits[1] == INFINITY or (isinstance(limits[1], int | float) and limits[1] >= MOST)
    ):
        raise file.fail(
            "time_step_limit", "[0, Infinity] (steps within narrower limits are not supported)"
        )


def hf_mixer(tensors: Rearranged, folder: str, state: Ssd, number: int) -> None:
    """Rename the tensors in ``folder``; z, the convolution's input and dt are fused."""
    parts = {
        tensors.usual(Role.STATE_GATE, number): state.inner,
        tensors.usual(Role.STATE_IN, number): state.channels,
        tensors.usual(Role.STATE_DECAY, number): state.n_heads,
    }
    tensors.split_rows(f"{folder}.in_proj.weight", parts)
    give_conv(tensors, f"{folder}.conv1d.weight", state, number)
    give(tensors, f"{folder}.conv1d.bias", Role.STATE_CONV_BIAS, number)
    tensors.exponentiate(f"{folder}.A_log")
    give(tensors, f"{folder}.A_log", Role.STATE_RATE, number)
    give(tensors, f"{folder}.dt_bias", Role.STATE_DECAY_BIAS, number)
    give(tensors, f"{folder}.D", Role.STATE_SKIP, number)
    give(tensors, f"{folder}.norm.weight", Role.STATE_NORM, number)
    give(tensors, f"{folder}.out_proj.weight", Role.STATE_OUT, number)


def state_of(file: ModelFile, inner: int | None = None) -> Ssd:
    """Return the state that a file describes.

    ``inner`` is the inner size that a config.json implies; a GGUF file has it.
    """
    check_steps(file)
    check_no_bias(file, "mamba_proj_bias")
    n_heads, n_key_heads = file.integer("mamba_n_heads"), file.integer("mamba_n_groups")
    if inner is None:
        key = "{arch}.ssm.inner_size"
        inner = file.integer(key)
        if inner % n_heads or inner % n_key_heads:
            raise file.fail(key, f"a multiple of {n_heads} and {n_key_heads}")
        conv_bias = any(name.endswith(".ssm_conv1d.bias") for name in file.tensors)
    else:
        is_said = file.raw("mamba_d_head") not in (None, "auto")
        value_dim = file.integer("mamba_d_head") if is_said else inner // n_heads
        if n_heads * value_dim != inner:
            raise file.fail("mamba_d_head", f"{inner} divided by the number of heads, {n_heads},")
        conv_bias = file.flag("mamba_conv_bias", default=True)
    return Ssd(
        taps=file.integer("mamba_d_conv"),
        n_heads=n_heads,
        value_dim=inner // n_heads,
        n_key_heads=n_key_heads,
        key_dim=file.integer("mamba_d_state"),
        norm_size=inner // n_key_heads,
        conv_bias=conv_bias,
    )


def gguf_mixers(tensors: Rearranged, config: ModelConfig) -> None:
    """Split z, the convolution's input and dt; reshape two-dimensional vectors."""
    for number, layer in enumerate(config.layers):
        if not isinstance(layer.state, Ssd):
            continue
        parts = {
            tensors.usual(Role.STATE_GATE, number): layer.state.inner,
            tensors.usual(Role.STATE_IN, number): layer.state.channels,
            tensors.usual(Role.STATE_DECAY, number): layer.state.n_heads,
        }
        tensors.split_rows(f"blk.{number}.ssm_in.weight", parts)
        tensors.ravel(tensors.usual(Role.STATE_CONV, number), layer.state.taps)
        for role in (Role.STATE_RATE, Role.STATE_SKIP, Role.STATE_NORM):
            tensors.ravel(tensors.usual(role, number))
