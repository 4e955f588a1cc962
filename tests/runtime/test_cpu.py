import pytest

from lanewise.runtime import (
    Limits,
    NativeError,
    best_isa,
    check_isa,
    cpu_features,
    kernels,
    measure_limits,
)


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


def test_limits_are_measured_with_the_threads_asked_for(fake):
    assert measure_limits(2, "avx2") == Limits(read_gb_s=60.0, int8_gmac_s=400.0)
