"""What the library says about the CPU, as Python values."""

import dataclasses
from dataclasses import replace
from functools import partial

import pytest

from lanewise.runtime import (
    ISA_LEVELS,
    Limits,
    NativeError,
    best_isa,
    check_isa,
    cpu,
    cpu_features,
    kernels,
    measure_limits,
    usable_levels,
)
from lanewise.runtime.tuning import choices, choose
from lanewise.settings import ModelSettings


def test_kernels_are_listed_with_their_availability(fake):
    assert [(row.symbol, row.available) for row in kernels()] == [
        ("gemv_0", False),
        ("gemv_1", True),
    ]


def test_level_and_features_are_text(fake):
    assert best_isa() == "avx2"
    assert cpu_features() == ["avx2"]


def test_level_this_cpu_lacks_is_an_error(fake):
    fake.failure = ("check", "isa 'i8mm': this CPU has avx2")
    with pytest.raises(NativeError, match="isa 'i8mm'"):
        check_isa("i8mm")


def test_levels_this_cpu_lacks_are_left_out(fake):
    assert usable_levels() == list(ISA_LEVELS)
    fake.failure = ("check", "isa: this CPU has none")
    assert usable_levels() == []


def test_settings_accept_the_levels_of_the_library():
    (isa,) = [item for item in dataclasses.fields(ModelSettings) if item.name == "isa"]
    assert isa.metadata["kind"].accepts.split(" | ") == list(ISA_LEVELS)


def test_limits_are_measured_with_the_threads_asked_for(fake):
    assert measure_limits(2, "avx2") == Limits(read_gb_s=60.0, int8_gmac_s=400.0)


@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_kernels_in_use_follow_choices_at_every_level():
    types = {row.symbol: row.weights for row in kernels()}
    for isa in usable_levels():
        standing = choices(isa)  # what a test before this one may have measured
        never = [replace(choice, min_rows=2**31) for choice in standing]
        try:
            choose(never)
            for choice in standing:
                used = partial(cpu.kernels_in_use, isa, types[choice.symbol])
                assert choice.symbol not in used()
                choose([replace(choice, min_rows=512)])
                assert used()[-1] == choice.symbol
                choose(never)
        finally:
            choose(standing)
    assert cpu.kernels_in_use("scalar", "q4_0") == ["matmul_q4g32_q8g32__scalar"]
