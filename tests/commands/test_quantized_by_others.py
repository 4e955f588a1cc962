"""GPTQ, AWQ and compressed-tensors checkpoints computed with, packed and quantized."""

import json

import numpy as np
import pytest

import scaled_by_others
import tiny_models
from lanewise import cli
from lanewise.loading.base.checkpoint import Converted, ModelFileError, Role
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Batch, Model, NativeError, Session, usable_levels
from packed_by_others import write_model
from scaled_by_others import fp8, of_blocks

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]

PROMPT = tiny_models.prompt(40)
KINDS = {
    "awq": ("awq", {}),
    "gptq": ("gptq", {"symmetric": True}),
    "gptq rows": ("gptq", {"group": 0}),
    "gptq 8 bits": ("gptq", {"bits": 8, "group": 32}),
    "gptq act-order": ("gptq", {"act_order": True}),
    "gptq 3 bits": ("gptq", {"act_order": True, "bits": 3}),
    "gptq act-order 8": ("gptq", {"act_order": True, "bits": 8, "group": 128}),
    "compressed": ("compressed-tensors", {}),
}


def logits(path, isa=None, parts=(40,), threads=2, float_activations=False, weights=None):
    """Logits of the prompt, run in steps of so many tokens."""
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=isa, threads=threads, weights=weights) as model,
        Session(
            model,
            threads=threads,
            blocks=2,
            max_batch_tokens=40,
            max_batch_logits=40,
            kv_type="f32",
            float_activations=float_activations,
        ) as session,
    ):
        found, done = [], 0
        for size in parts:
            part = PROMPT[done : done + size]
            batch = Batch(part, [0, size], [done], [[0, 1]], list(range(size)))
            found.append(session.step(batch).copy())
            done += size
        return np.concatenate(found)


def distance(found, expected):
    return np.sqrt(np.square(found - expected).mean() / np.square(expected).mean())


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_same_weights_in_float32(name, tmp_path):
    """What is left between them is the rounding of activations to eight bits: 0.027 to 0.029."""
    method, options = KINDS[name]
    model = write_model(tmp_path, method, **options)
    expected = logits(model.floats)
    found = logits(model.packed)
    assert distance(found, expected) < 0.04
    reference = logits(model.packed, float_activations=True)
    assert distance(reference, expected) < 1e-5  # in another order, where that is the model's


def test_fp8_is_held_in_eight_bits_and_as_it_is_where_that_is_asked(tmp_path):
    settings = {"quant_method": "fp8", "weight_block_size": [48, 80]}
    weights = scaled_by_others.write(tmp_path / "fp8", settings, fp8(of_blocks))
    model = scaled_by_others.model_of()
    floats = {f"{name}.weight": values for name, values in weights.items()}
    floats = tiny_models.TinyModel(model.family, model.config, model.tensors | floats)
    expected = logits(tiny_models.write_hf(floats, tmp_path / "floats"))
    assert np.array_equal(logits(tmp_path / "fp8", weights="f32"), expected)
    assert 1e-4 < distance(logits(tmp_path / "fp8"), expected) < 0.04


@pytest.fixture(scope="module")
def act_order(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("act-order"), "gptq", act_order=True)


def test_the_tolerance_notices_an_order_that_is_not_applied(act_order):
    expected = logits(act_order.floats)
    with open_checkpoint(act_order.packed) as checkpoint:
        kept = [t for t in checkpoint.tensors if t.role != Role.FFN_INPUT_ORDER]
        checkpoint.tensors[:] = kept
        with (
            Model.load(checkpoint) as model,
            Session(
                model, threads=1, blocks=2, max_batch_tokens=40, max_batch_logits=40, kv_type="f32"
            ) as session,
        ):
            found = session.step(Batch(PROMPT, [0, 40], [0], [[0, 1]], list(range(40))))
            assert distance(found, expected) > 0.1


def test_an_order_gives_the_same_bits_however_it_is_run(act_order):
    expected = logits(act_order.packed, isa="scalar", threads=1)
    for level in usable_levels():
        assert np.array_equal(logits(act_order.packed, isa=level), expected), level
    assert np.array_equal(logits(act_order.packed, parts=(1, 7, 1, 31)), expected)


def test_a_packed_file_keeps_the_order(act_order, tmp_path):
    assert cli.main(["pack", str(act_order.packed), "-o", str(tmp_path / "packed")]) == 0
    assert np.array_equal(logits(tmp_path / "packed"), logits(act_order.packed))


@pytest.mark.parametrize("calibrate", [False, True])
def test_it_can_be_quantized_again(act_order, tmp_path, calibrate):
    """In other types, whose inputs are in their own order again."""
    options = ["--format", "a8_g32", "--head", "q8_0"]
    if calibrate:
        text = tiny_models.write_text(tmp_path / "text.txt")
        options += ["--calibrate", str(text), "--calibration-tokens", "512"]
    out = tmp_path / "out"
    assert cli.main(["quantize", str(act_order.packed), "-o", str(out), *options]) == 0
    assert distance(logits(out), logits(act_order.floats)) < 0.05
    with open_checkpoint(out) as checkpoint:
        assert not any("ORDER" in tensor.role.name for tensor in checkpoint.tensors)


def test_the_same_type_is_copied(tmp_path):
    model = write_model(tmp_path, "awq")
    options = ["--format", "a4_g64", "--head", "f32"]
    out = tmp_path / "out"
    assert cli.main(["quantize", str(model.packed), "-o", str(out), *options]) == 0
    assert np.array_equal(logits(out), logits(model.packed))


def test_perplexity_and_inspect_read_it(tmp_path, capsys):
    model = write_model(tmp_path, "awq")
    text = tiny_models.write_text(tmp_path / "text.txt")
    command = ["perplexity", str(model.packed), "--file", str(text), "--chars", "2000", "--json"]
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == "a4_g64"
    assert cli.main(["inspect", str(model.packed), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = [t for t in report["tensors"] if t["name"].endswith("layers.0.mlp.up_proj.weight")]
    assert row["type"] == "a4_g64"
    assert row["shape"] == [192, 128]
    assert row["bits_per_weight"] == pytest.approx(4.375)


@pytest.mark.parametrize("wrong", [0.5, -1.0, 128.0, 3.0])
def test_an_order_that_is_none_is_refused(act_order, wrong):
    with open_checkpoint(act_order.packed) as checkpoint:
        for tensor in checkpoint.tensors:
            if tensor.role == Role.ATTN_INPUT_ORDER and tensor.layer == 1:
                order = np.frombuffer(tensor.data, "<f4").copy()
                order[np.flatnonzero(order != 3)[0]] = wrong
                object.__setattr__(tensor, "stored", order.data.cast("B"))
        with pytest.raises((NativeError, ModelFileError)) as caught:
            Model.load(checkpoint)
        assert "layer 1 order of Q, K and V: must hold each number from 0 to 127 once" in str(
            caught.value
        )


def test_a_quantized_matrix_is_made_when_it_is_asked_for(act_order):
    with open_checkpoint(act_order.packed) as checkpoint:
        made = [t for t in checkpoint.tensors if isinstance(t.stored, Converted)]
        assert len(made) == 2 * 7
