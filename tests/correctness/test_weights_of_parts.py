"""Parts of a model in types of their own: the same bits as from a file with the same numbers."""

from dataclasses import replace

import numpy as np
import pytest

from lanewise.commands.selftest import CONFIG, random_checkpoint
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.runtime import Batch, Model, Session, usable_levels
from lanewise.runtime.targets import ATTENTION, part_types

pytestmark = pytest.mark.native


def logits(checkpoint, weights, isa=None):
    with (
        Model.load(checkpoint, weights=weights, isa=isa) as model,
        Session(model, threads=1, blocks=1, max_batch_tokens=9, max_batch_logits=9) as session,
    ):
        return session.step(Batch(list(range(9)), [0, 9], [0], [[0]], list(range(9)))).copy()


def as_floats(tensor):
    """The same numbers as F32."""
    blocks = np.frombuffer(tensor.data, np.uint8).reshape(-1, 34)
    scales = blocks[:, :2].copy().view("<f2").astype("f4")
    values = scales * blocks[:, 2:].copy().view(np.int8).astype("f4")
    return replace(tensor, type=TensorType.F32, stored=memoryview(values.tobytes()))


@pytest.mark.parametrize(
    ("weights", "roles"),
    [
        ("attention=q4_0", ATTENTION),
        ("head=q4_0,attention=q4_0", ATTENTION | {Role.TOKEN_EMBEDDING}),
    ],
)
def test_q8_0_becomes_what_its_numbers_become(weights, roles):
    held = random_checkpoint(TensorType.Q8_0)
    floats = random_checkpoint(TensorType.Q8_0)
    floats.tensors = [as_floats(t) if t.role in roles else t for t in floats.tensors]
    wanted = logits(floats, weights)
    for isa in usable_levels():
        assert logits(held, weights, isa).tobytes() == wanted.tobytes()
    assert logits(held, None).tobytes() != wanted.tobytes()


def test_what_is_asked_for_is_what_is_held():
    checkpoint = random_checkpoint(TensorType.Q8_0)
    types = dict(
        zip((t.role for t in checkpoint.tensors), part_types(checkpoint, "ffn=q4_0"), strict=True)
    )
    assert types[Role.FFN_DOWN] is types[Role.FFN_UP] is TensorType.Q4_0
    assert types[Role.ATTN_Q] is TensorType.Q8_0
    with Model.load(checkpoint, weights="ffn=q4_0") as model:
        assert (model.weights, model.parts) == ("q8_0", "ffn=q4_0")
        ffn = 3 * 512 * CONFIG.hidden_size
        saved = ffn * (34 - 18) // 32
    with Model.load(checkpoint) as whole:
        assert whole.info.matrix_bytes - model.info.matrix_bytes == saved


@pytest.mark.parametrize(
    ("kind", "weights", "says"),
    [
        (TensorType.Q4_K, "ffn=q4_0", "is q4_k and cannot become 'q4_0'"),
        (TensorType.Q4_0, "ffn=q8_0", "is q4_0 and cannot become 'q8_0'"),
        (TensorType.Q8_0, "experts=q4_0", "the model has no experts"),
    ],
)
def test_what_cannot_be_made_is_refused(kind, weights, says):
    with pytest.raises(ModelFileError, match=says):
        Model.load(random_checkpoint(kind), weights=weights)
