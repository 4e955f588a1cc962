"""JinaBERT v2, a BERT by its config's name, against its definition written here in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from encoder_models import texts_of, types_of, write_gguf
from family_models import FamilyModel, values_of, write_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Encoder, Model, usable_levels
from published_configs import ENCODERS

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

Array = NDArray[np.float64]
HIDDEN, SIZE, HEADS, LAYERS = 48, 80, 6, 2
CONFIG = ENCODERS["bert"] | {
    "architectures": ["JinaBertForMaskedLM"],
    "num_attention_heads": HEADS,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
}
# Of six heads: four, and every second of eight.
SLOPES = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


def jina_model() -> FamilyModel:
    shapes = {
        "embeddings.word_embeddings.weight": (256, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": (HIDDEN,),
        "embeddings.LayerNorm.bias": (HIDDEN,),
    }
    for i in range(LAYERS):
        folder = f"encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{folder}.attention.{name}.weight"] = (HIDDEN, HIDDEN)
            shapes[f"{folder}.attention.{name}.bias"] = (HIDDEN,)
        for name in ("attention.output.LayerNorm", "mlp.layernorm"):
            shapes[f"{folder}.{name}.weight"] = shapes[f"{folder}.{name}.bias"] = (HIDDEN,)
        shapes[f"{folder}.mlp.gated_layers.weight"] = (2 * SIZE, HIDDEN)
        shapes[f"{folder}.mlp.wo.weight"] = (HIDDEN, SIZE)
        shapes[f"{folder}.mlp.wo.bias"] = (HIDDEN,)
    return FamilyModel("jina_bert", CONFIG, {k: values_of(k, v) for k, v in shapes.items()})


def rows_of(model: FamilyModel, text: NDArray[np.uint32], types: NDArray[np.uint32]) -> Array:
    """The rows of one text, from the definition."""
    w = {name: array.astype(np.float64) for name, array in model.tensors.items()}

    def norm(x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    x = w["embeddings.word_embeddings.weight"][text]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
    distance = np.abs(np.subtract.outer(np.arange(len(text)), np.arange(len(text))))
    for i in range(LAYERS):
        folder = f"encoder.layer.{i}"
        q, k, v = (
            linear(x, f"{folder}.attention.self.{n}").reshape(len(text), HEADS, -1).swapaxes(0, 1)
            for n in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(HIDDEN // HEADS)
        scores -= np.array(SLOPES)[:, None, None] * distance
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weights / weights.sum(-1, keepdims=True) @ v
        seen = seen.swapaxes(0, 1).reshape(len(text), HIDDEN)
        x = norm(
            x + linear(seen, f"{folder}.attention.output.dense"),
            f"{folder}.attention.output.LayerNorm",
        )
        gate, up = np.split(linear(x, f"{folder}.mlp.gated_layers"), 2, axis=1)
        erf = np.vectorize(math.erf)
        gated = gate * (1 + erf(gate / np.sqrt(2))) / 2 * up
        x = norm(x + linear(gated, f"{folder}.mlp.wo"), f"{folder}.mlp.layernorm")
    return x


def test_results_are_those_of_the_definition_at_all_levels(tmp_path: Path) -> None:
    model, texts = jina_model(), texts_of((1, 9, 70))
    types = types_of(CONFIG, (1, 9, 70))
    expected = np.concatenate([rows_of(model, *one) for one in zip(texts, types, strict=True)])
    path, found = write_model(model, tmp_path / "model"), set()
    for i, isa in enumerate(usable_levels()):
        with (
            open_checkpoint(path) as checkpoint,
            Model.load(checkpoint, isa=isa) as loaded,
            Encoder(loaded, threads=1 + i % 3) as encoder,
        ):
            rows = encoder.run(texts, types, pooling="none")
            assert np.abs(rows - expected).max() < 1e-5 * np.abs(expected).max()
            found.add(rows.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("fused", [True, False])
def test_a_gguf_file_has_the_bits_of_the_directory(fused: bool, tmp_path: Path) -> None:
    """Gate and up are one tensor in files of today, two in those of the first converter."""
    model, texts, found = jina_model(), texts_of((1, 9, 70)), set()
    directory = write_model(model, tmp_path / "model")
    for i in range(0 if fused else LAYERS):
        both = model.tensors.pop(f"encoder.layer.{i}.mlp.gated_layers.weight")
        model.tensors[f"blk.{i}.ffn_gate.weight"] = both[:SIZE]
        model.tensors[f"blk.{i}.ffn_up.weight"] = both[SIZE:]
    for path in (directory, write_gguf(model, "jina-bert-v2", tmp_path / "m.gguf")):
        with (
            open_checkpoint(path) as checkpoint,
            Model.load(checkpoint) as loaded,
            Encoder(loaded, threads=1) as encoder,
        ):
            found.add(encoder.run(texts, types_of(CONFIG, (1, 9, 70))).tobytes())
    assert len(found) == 1
