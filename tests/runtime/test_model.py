"""Loading a checkpoint, against a library of Python functions."""

import dataclasses

import pytest

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.program import Rope
from lanewise.runtime import Model, NativeError, Session
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_name, hint_of_floats, target_types

F32, Q4_0, Q8_0 = TensorType.F32, TensorType.Q4_0, TensorType.Q8_0


def with_types(checkpoint, *kinds):
    checkpoint.tensors = [
        dataclasses.replace(tensor, type=kind)
        for tensor, kind in zip(checkpoint.tensors, kinds, strict=True)
    ]
    return checkpoint


def test_load_hands_over_every_tensor_releases_it_and_reports_progress(fake, checkpoint):
    progress = []
    Model.load(checkpoint, threads=2, progress=lambda done, total: progress.append((done, total)))
    sizes = [50 * 64 * 4, 64 * 97 * 4, 64 * 4]
    assert fake.calls == [
        ("create", None, 2, 50, 0),
        ("load", 0, F32, sizes[0], 0.0),
        ("load", 16, F32, sizes[1], 16.0),
        ("load", 2, F32, sizes[2], 2.0),
        ("finish",),
        ("describe",),
    ]
    assert checkpoint.released == [tensor.name for tensor in checkpoint.tensors]
    total = sum(sizes)
    done = [0, sizes[0], sizes[0] + sizes[1], total]
    assert progress == [(n_bytes, total) for n_bytes in done]


def test_info_is_what_the_library_says(fake, checkpoint):
    model = Model.load(checkpoint)
    assert (model.info.isa, model.info.packed_bytes) == ("avx2", 123)
    assert model.weights == "f32"
    assert model.kv_layout("f16").block_bytes == 1001


def test_rope_factors_reach_the_library(fake, checkpoint):
    rope = Rope(10000.0, 32, (1.0,) * 15 + (8.0,))
    checkpoint.config = dataclasses.replace(checkpoint.config, ropes=(rope,))
    Model.load(checkpoint)
    assert fake.factors == [1.0] * 15 + [8.0]


def test_rope_factors_of_the_wrong_length_are_refused(fake, checkpoint):
    rope = Rope(10000.0, 32, (1.0, 2.0))
    checkpoint.config = dataclasses.replace(checkpoint.config, ropes=(rope,))
    with pytest.raises(
        ModelFileError,
        match="2 RoPE factors; 16 positive finite numbers are needed, half",
    ):
        Model.load(checkpoint)


def test_failed_load_names_file_and_tensor_and_frees_the_model(fake, checkpoint):
    fake.failure = ("load", "n_bytes is 5")
    with pytest.raises(
        NativeError, match=r"tiny\.gguf: tensor token_embd.weight: n_bytes is 5"
    ) as e:
        Model.load(checkpoint)
    assert e.value.status == 3
    assert fake.calls[-1] == ("close_model", True)


def test_forced_level_that_is_not_used_is_an_error(fake, checkpoint):
    with pytest.raises(NativeError, match="'scalar' was asked for and 'avx2' is used"):
        Model.load(checkpoint, isa="scalar")


def test_float_matrices_are_quantized_where_rows_divide_into_groups(checkpoint):
    assert target_types(checkpoint, "q4_0") == [Q4_0, F32, F32]
    assert target_types(checkpoint, "q8_0") == [Q8_0, F32, F32]


def test_a_model_is_called_what_its_matrices_are_held_in(fake, checkpoint, caplog):
    assert Model.load(checkpoint, weights="q8_0").weights == "q8_0"
    assert "weights q8_0: 1 of 2 matrices keep their type" in caplog.text
    assert "the first is blk.0.ffn_down.weight" in caplog.text
    del checkpoint.tensors[0]
    assert Model.load(checkpoint, weights="q8_0").weights == "f32"
    assert Model.load(checkpoint, weights="f32").weights == "f32"


@pytest.mark.parametrize(
    ("weights", "name"), [(None, "q8_0"), ("ffn=q4_0", "q8_0"), ("f32", "f32")]
)
def test_a_widened_model_is_called_what_is_not_asked_of_it(checkpoint, weights, name):
    checkpoint.is_widened = True
    assert held_name(checkpoint, weights) == name
    del checkpoint.tensors[0]
    assert held_name(checkpoint, None) == "f32"


@pytest.mark.parametrize(
    ("kind", "weights", "machine", "hinted"),
    [
        (TensorType.F16, None, "aarch64", True),
        (TensorType.BF16, None, "arm64", True),
        (TensorType.F16, None, "x86_64", False),
        (TensorType.F16, "q8_0", "aarch64", False),
        (TensorType.BF16, "bf16", "aarch64", False),  # as asked for
        (F32, None, "aarch64", False),
    ],
)
def test_halves_on_arm_are_told_what_converts_them(checkpoint, kind, weights, machine, hinted):
    with_types(checkpoint, kind, kind, F32).weights_name = kind.name.lower()
    hint = hint_of_floats(checkpoint, weights, machine)
    assert (hint is not None) == hinted
    assert not hinted or "--weights q8_0 converts them while they load" in hint


@pytest.mark.parametrize("weights", [None, "f32"])
def test_own_type_keeps_every_tensor(checkpoint, weights):
    assert target_types(checkpoint, weights) == [F32, F32, F32]


def test_file_that_mostly_is_the_type_asked_for_stays_as_it_is(checkpoint):
    with_types(checkpoint, TensorType.Q6_K, Q4_0, F32).weights_name = "q4_0"
    assert target_types(checkpoint, "q4_0") == [TensorType.Q6_K, Q4_0, F32]


def test_quantized_file_cannot_become_another_type(checkpoint):
    with_types(checkpoint, Q4_0, Q4_0, F32).weights_name = "q4_0"
    with pytest.raises(ModelFileError, match=r"tensor token_embd.weight is q4_0 already .*'q8_0'"):
        target_types(checkpoint, "q8_0")


def test_float_file_cannot_become_another_float_type(checkpoint):
    with pytest.raises(
        ModelFileError, match=r"weights 'f16' cannot be made from f32; accepted: f32"
    ):
        target_types(checkpoint, "f16")


def test_close_closes_sessions_first_and_only_once(fake, checkpoint):
    model = Model.load(checkpoint)
    session = Session(model, threads=1, blocks=1, max_batch_tokens=1, max_batch_logits=1)
    fake.calls.clear()
    model.close()
    session.close()
    model.close()
    assert [call for call in fake.calls if call[1]] == [
        ("close_session", True),
        ("close_model", True),
    ]
    with pytest.raises(ValueError, match="the model is closed"):
        model.kv_layout("f16")


@pytest.mark.parametrize(
    ("asked", "weights", "used"),
    [
        ("auto", "f32", "f32"),
        ("auto", "q4_0", "f16"),
        ("f16", "f32", "f16"),
        ("int8", "f32", "int8"),
    ],
)
def test_kv_type_follows_the_matrices_unless_it_is_given(asked, weights, used):
    assert resolve_kv_type(asked, weights) == used


def test_unknown_kv_type_is_named(fake, checkpoint):
    with pytest.raises(ValueError, match="kv_type 'int3' is unknown; accepted: f16, f32, int8"):
        Model.load(checkpoint).kv_layout("int3")
