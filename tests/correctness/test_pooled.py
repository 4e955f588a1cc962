"""Models that write text, pooled; and dense heads of their own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from encoder_models import encoder_model, texts_of
from family_models import family_model, write_model
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.program import Dense, Pooling
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.pooling.pooled import add_dense, as_judge, as_pooled
from lanewise.runtime import Batch, Encoder, Model, NativeError, Session, usable_levels

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

ISA = os.environ.get("LANEWISE_ISA")
TEXT = [(7 * i * i + 3 * i) % 250 for i in range(45)]


def last_logits(path: Path, text: list[int]) -> np.ndarray:
    """What follows a text, by the model that writes."""
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=ISA) as model,
        Session(
            *(model,), threads=1, blocks=2, max_batch_tokens=64, max_batch_logits=1, kv_type="f32"
        ) as session,
    ):
        batch = Batch(text, [0, len(text)], [0], [[0, 1]], [len(text) - 1])
        return session.step(batch)[0].copy()


@pytest.mark.parametrize("name", ["qwen3", "llama", "mistral"])
def test_a_judge_has_the_logits_of_the_model_that_writes(name: str, tmp_path: Path) -> None:
    """To the bit, at all levels, with a head of its own, the embedding's, and a window."""
    path = write_model(family_model(name), tmp_path / "model")
    expected = last_logits(path, TEXT)[[250, 3, 9]]
    texts = [np.array(TEXT, np.uint32), np.array(TEXT[:7], np.uint32)]
    for i, isa in enumerate(usable_levels()):
        with open_checkpoint(path) as checkpoint:
            as_judge(checkpoint, [250, 3, 9])
            with (
                Model.load(checkpoint, isa=isa) as model,
                Encoder(model, threads=1 + i % 3) as encoder,
            ):
                assert encoder.dims == 3
                assert encoder.run(texts)[0].tobytes() == expected.tobytes()


def test_rows_of_a_pooled_model_are_what_its_head_reads(tmp_path: Path) -> None:
    path = write_model(family_model("qwen3_bias"), tmp_path / "model")
    with open_checkpoint(path) as checkpoint:
        head = next(one for one in checkpoint.tensors if one.name == "lm_head.weight")
        weights = np.frombuffer(head.data, np.float32).reshape(head.rows, head.cols)
        as_pooled(checkpoint, Pooling("last"))
        with Model.load(checkpoint, isa=ISA) as model, Encoder(model, threads=2) as encoder:
            (row,) = encoder.run([np.array(TEXT, np.uint32)])
            assert np.allclose(weights @ row, last_logits(path, TEXT), atol=1e-5)
            # It sees what is before it only.
            rows = encoder.run([np.array(TEXT, np.uint32)], pooling="none")
            begun = encoder.run([np.array(TEXT[:20], np.uint32)], pooling="none")
            assert rows[:20].tobytes() == begun.tobytes()
            with pytest.raises(NativeError, match="lw_model_kv_layout: the model is pooled"):
                Session(model, threads=1, blocks=2, max_batch_tokens=64, max_batch_logits=1)


def test_answers_are_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    path = write_model(family_model("qwen3_bias"), tmp_path / "model")
    with open_checkpoint(path) as checkpoint:
        for answers, said in (([1, 256], "[256]"), ([-1], "[-1]"), ([], "none")):
            with pytest.raises(ModelFileError) as error:
                as_judge(checkpoint, answers)
            assert f"answers {said}; accepted: token ids from 0 to 255" in str(error.value)


def test_dense_modules_follow_the_pooling(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    first = {"linear.weight": rng.normal(size=(96, 48)).astype(np.float32)}
    second = {"linear.weight": rng.normal(size=(32, 96)).astype(np.float32)}
    second["linear.bias"] = rng.normal(size=32).astype(np.float32)
    for name, tensors in (("2_Dense", first), ("3_Dense", second)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    path = write_model(encoder_model("bert"), tmp_path / "model")
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=ISA) as model,
        Encoder(model, threads=1) as encoder,
    ):
        plain = encoder.run(texts_of())
    with open_checkpoint(path) as checkpoint:
        add_dense(checkpoint, tmp_path / "2_Dense", Dense(96))
        with pytest.raises(ModelFileError, match=r"needed are linear\.weight"):
            add_dense(checkpoint, tmp_path / "3_Dense", Dense(32, activation="tanh"))
        with pytest.raises(ModelFileError, match=r"is F32 \[32, 96\]; \[7, 96\] of"):
            add_dense(checkpoint, tmp_path / "3_Dense", Dense(7, True))
        add_dense(checkpoint, tmp_path / "3_Dense", Dense(32, True, "tanh"))
        with Model.load(checkpoint, isa=ISA) as model, Encoder(model, threads=2) as encoder:
            found = encoder.run(texts_of())
    middle = plain @ first["linear.weight"].T
    expected = np.tanh(middle @ second["linear.weight"].T + second["linear.bias"])
    assert np.abs(found - expected).max() < 1e-5
