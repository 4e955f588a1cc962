"""What a session says of the inputs of matrices, against numpy and however it was run."""

import gguf
import numpy as np
import pytest

from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Batch, Model, Session
from tiny_models import prompt, tiny_model, write_gguf

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

LENGTH = 70
SIZES = {"hidden_size": 64, "intermediate_size": 160}


def observe(path, parts=(LENGTH,), threads=2, **options):
    """The inputs of a prompt that is run in steps of so many tokens, by operation and layer."""
    ids, done = prompt(LENGTH), 0
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, threads=2) as model,
        Session(
            model,
            threads=threads,
            blocks=3,
            max_batch_tokens=LENGTH,
            max_batch_logits=LENGTH,
            kv_type="f32",
            **{"observe_inputs": True, **options},
        ) as session,
    ):
        for size in parts:
            part = ids[done : done + size]
            session.step(Batch(part, [0, size], [done], [[0, 1, 2]], list(range(size))))
            done += size
        return {(row.operation, row.layer): row for row in session.inputs()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model with two inputs that stand out, in F32 and in Q8_0."""
    folder = tmp_path_factory.mktemp("files")
    model = tiny_model("llama2", **SIZES)
    model.tensors["model.embed_tokens.weight"][:, 41] *= 60
    model.tensors["model.layers.1.mlp.up_proj.weight"][150] *= 50
    kind = gguf.GGMLQuantizationType.Q8_0
    floats, codes = folder / "f32.gguf", folder / "q8_0.gguf"
    return model, write_gguf(model, floats), write_gguf(model, codes, kind)


def test_the_first_inputs_are_those_of_numpy(files):
    model, path, _ = files
    x = model.tensors["model.embed_tokens.weight"][prompt(LENGTH)].astype(np.float64)
    x /= np.sqrt((x**2).mean(axis=1, keepdims=True) + model.config["rms_norm_eps"])
    sizes = np.abs(x * model.tensors["model.layers.0.input_layernorm.weight"])
    groups = np.sort(sizes.reshape(LENGTH, -1, 32), axis=2)
    found = observe(path)["qkv", 0]
    assert (found.values, found.groups) == (sizes.size, 2 * LENGTH)
    assert found.mean == pytest.approx(sizes.mean(), rel=1e-5)
    assert found.largest == pytest.approx(sizes.max(), rel=1e-5)
    assert found.largest_input == sizes.max(axis=0).argmax() == 41
    assert found.outlier_groups == (groups[..., -1] > 8 * groups[..., -2]).sum() > LENGTH / 2


def test_every_product_is_there_and_threads_and_steps_change_nothing(files):
    model, path, _ = files
    whole = observe(path)
    layers = range(model.config["num_hidden_layers"])
    names = ("qkv", "attn_output", "gate_up", "down")
    assert list(whole) == [*((name, i) for i in layers for name in names), ("head", 0)]
    cols = {"down": SIZES["intermediate_size"]}
    for (name, _), row in whole.items():
        assert row.values == LENGTH * cols.get(name, SIZES["hidden_size"])
        assert 0 < row.mean < row.largest
    for threads, parts in ((1, (LENGTH,)), (3, (LENGTH,)), (3, (1, 1, 3, 30, 35))):
        again = observe(path, parts, threads)
        for key, row in again.items():
            assert row.mean == pytest.approx(whole[key].mean, rel=1e-6)
            assert row.largest == whole[key].largest
            assert row.largest_input == whole[key].largest_input
            assert row.outlier_groups == whole[key].outlier_groups


def test_floats_are_observed_where_codes_are_multiplied_too(files):
    """Their rows lie apart there, segment by segment."""
    _, _, path = files
    exact, found = observe(path, float_activations=True), observe(path)
    assert exact != found
    for key, row in found.items():
        assert row.values == exact[key].values
        assert row.mean == pytest.approx(exact[key].mean, rel=0.03)
        assert row.largest == pytest.approx(exact[key].largest, rel=0.1)
    assert found["qkv", 0].largest_input == 41
    assert found["down", 1].largest_input == exact["down", 1].largest_input == 150


def test_nothing_is_observed_unless_asked(files):
    assert observe(files[1], observe_inputs=False) == {}
