"""The self-test: its random models, and which levels it compares."""

import numpy as np
import pytest

from lanewise.commands import selftest
from lanewise.commands.selftest import BLOCK_MAKERS, LevelResult, random_checkpoint, run_selftest
from lanewise.loading.base.formats import BLOCKS, TensorType, row_bytes
from lanewise.runtime import NativeError


@pytest.mark.parametrize("kind", BLOCK_MAKERS)
def test_random_tensors_have_the_bytes_of_their_type(kind):
    for tensor in random_checkpoint(kind).tensors:
        assert tensor.data.nbytes == tensor.rows * row_bytes(tensor.type, tensor.cols)
    assert random_checkpoint(kind).weights_name == kind.name.lower()


def test_every_type_the_loader_knows_is_tested():
    held = {*BLOCKS, TensorType.FP4} - {TensorType.NVFP4}  # which is rearranged to FP4
    assert set(BLOCK_MAKERS) == held


def test_bfloat16_is_the_upper_half_of_float32():
    f32, bf16 = (
        random_checkpoint(kind).tensors[0].data for kind in (TensorType.F32, TensorType.BF16)
    )
    upper = np.frombuffer(f32, np.uint32) >> 16
    assert np.array_equal(upper, np.frombuffer(bf16, np.uint16))


def test_each_level_is_compared_with_scalar(monkeypatch):
    def hash_of_logits(kind, isa, threads):
        if isa == "bad" and kind is TensorType.F16:
            raise NativeError("bad: not today", 4)
        return "different" if (isa, kind) == ("bad", TensorType.Q4_0) else kind.name

    monkeypatch.setattr(selftest, "usable_levels", lambda: ["scalar", "avx2", "bad"])
    monkeypatch.setattr(selftest, "hash_of_logits", hash_of_logits)
    results = run_selftest(1)
    assert {result.isa for result in results} == {"avx2", "bad"}
    assert [result for result in results if not result.equal] == [
        LevelResult("bad", "f16", False, "bad: not today"),
        LevelResult("bad", "q4_0", False),
    ]
