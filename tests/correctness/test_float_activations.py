"""With float activations a session has the logits of a model of the same weights in F32.

The weights are decoded by the gguf package, which knows nothing of our panels.
"""

from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Adapter, Batch, Model, Session
from lora_files import lora_config, lora_tensors, write_adapter
from tiny_models import TinyModel, prompt, tiny_model, write_gguf

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

LENGTH = 70
# hidden sizes that are whole blocks, and ffn sizes that are not whole segments
SIZES = {"hidden_size": 64, "intermediate_size": 160}
TYPES = ("Q8_0", "Q4_0", "Q4_1")


def decoded(model: TinyModel, kind: gguf.GGMLQuantizationType) -> TinyModel:
    """The model whose matrices went through a type and back."""
    tensors = {
        name: gguf.dequantize(gguf.quantize(tensor, kind), kind) if tensor.ndim == 2 else tensor
        for name, tensor in model.tensors.items()
    }
    return TinyModel(model.family, model.config, tensors)


def written(family: str, name: str, folder: Path) -> tuple[Path, Path]:
    """A quantized file, and the same weights in F32."""
    kind = gguf.GGMLQuantizationType[name]
    model = tiny_model(family, **SIZES)
    floats = decoded(model, kind)
    return (
        write_gguf(model, folder / f"{name}.gguf", kind),
        write_gguf(floats, folder / f"{name}-f32.gguf"),
    )


@contextmanager
def opened(path: Path, **options):
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, threads=2) as model,
        Session(
            model,
            **{"threads": 2, "blocks": 12, "kv_type": "f32", **options},
            max_batch_tokens=3 * LENGTH,
            max_batch_logits=3 * LENGTH,
        ) as session,
    ):
        yield model, session


def logits(session: Session, parts=(LENGTH,), adapters=None) -> np.ndarray:
    """Of every token of a prompt, run in steps of so many tokens."""
    ids, found, done = prompt(LENGTH), [], 0
    blocks = list(range(-(-LENGTH // BLOCK_TOKENS)))
    for size in parts:
        part = ids[done : done + size]
        batch = Batch(part, [0, size], [done], [blocks], list(range(size)), adapters=adapters)
        found.append(session.step(batch).copy())
        done += size
    return np.concatenate(found)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("family", ["llama2", "qwen2", "qwen3"])
def test_logits_are_those_of_the_same_weights_in_float32(family, name, tmp_path):
    quantized, floats = written(family, name, tmp_path)
    with opened(floats) as (_, session):
        expected = logits(session)
    with opened(quantized, float_activations=True) as (_, session):
        assert np.array_equal(logits(session), expected)
    with opened(quantized) as (_, session):
        assert not np.array_equal(logits(session), expected)


@pytest.mark.parametrize("kv_type", ["f16", "int8"])
def test_they_depend_on_the_tokens_alone(kv_type, tmp_path):
    quantized, floats = written("llama3", "Q8_0", tmp_path)
    with opened(floats, kv_type=kv_type) as (_, session):
        expected = logits(session)
    for parts in ((LENGTH,), (1,) * 5 + (LENGTH - 5,), (33, 3, LENGTH - 36)):
        options = {"kv_type": kv_type, "float_activations": True}
        with opened(quantized, threads=len(parts) % 3 + 1, **options) as (_, session):
            assert np.array_equal(logits(session, parts), expected)


def test_an_adapter_reads_the_same_activations(tmp_path):
    quantized, floats = written("llama2", "Q8_0", tmp_path)
    tensors = lora_tensors(tiny_model("llama2", **SIZES), rank=4, seed=1)
    files = write_adapter(tmp_path / "adapter", tensors, lora_config(4, 8))
    found = {}
    for path, is_reference in ((floats, False), (quantized, True)):
        options = {"max_adapter_rank": 4, "float_activations": is_reference}
        with opened(path, **options) as (model, session):
            opened_files = open_adapter(files, model.config)
            adapter = Adapter.load(model, opened_files)
            opened_files.close()
            found[path] = logits(session, adapters=[adapter])
            assert not np.array_equal(found[path], logits(session))
            adapter.close()
    assert np.array_equal(found[quantized], found[floats])
