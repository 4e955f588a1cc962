"""What a model costs as its file says, beside what the library says of the loaded model."""

import pytest

from lanewise.commands.selftest import random_checkpoint
from lanewise.loading.formats import TensorType
from lanewise.loading.hub import resolve_model
from lanewise.loading.opening import open_checkpoint
from lanewise.planning.work import work_of
from lanewise.runtime import Model

pytestmark = pytest.mark.native


def same_as_loaded(checkpoint, weights):
    work = work_of(checkpoint, weights, 1.0)
    with Model.load(checkpoint, weights=weights) as model:
        info = model.info
    assert sum(one.weights for one in work.matrices) == info.matrix_weights
    in_layers = sum(one.weights for one in work.matrices if not one.of_head)
    assert in_layers == info.layer_weights
    assert work.bytes_read(1) == pytest.approx(info.matrix_bytes, rel=0.02)
    assert work.held_bytes == pytest.approx(info.packed_bytes, rel=0.02)
    return work


def test_the_bundled_model(library):
    with open_checkpoint(resolve_model(None)) as checkpoint:
        work = same_as_loaded(checkpoint, None)
        assert {one.type for one in work.matrices} == {"q8_0"}
        assert work.n_layers == len(checkpoint.config.layers)


def test_a_model_that_is_quantized_while_it_is_loaded(library):
    checkpoint = random_checkpoint(TensorType.F32)
    work = same_as_loaded(checkpoint, "q4_0")
    assert {one.type for one in work.matrices} == {"q4_0"}
    assert work.held_bytes < same_as_loaded(checkpoint, "q8_0").held_bytes
