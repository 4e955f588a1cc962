"""Adapters against the model into whose matrices they were merged, and beside each other."""

import math
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from family_gguf import write_gguf as write_model_gguf
from family_models import family_model, write_case, write_model
from gguf_states import MULTIPLIED
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Adapter, Batch, Model, NativeError, Session
from lora_files import lora_config, lora_tensors, merged, write_adapter
from opened_models import write_as_packed
from tiny_models import FAMILIES, TinyModel, prompt, tiny_model, write_gguf, write_hf

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]
LENGTH = 40


@contextmanager
def opened(path: Path, max_adapter_rank: int = 0, threads: int = 2):
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, threads=threads) as model,
        Session(
            model,
            threads=threads,
            blocks=16,
            max_batch_tokens=6 * LENGTH,
            max_batch_logits=6 * LENGTH,
            kv_type="f32",
            states=6,
            max_adapter_rank=max_adapter_rank,
        ) as session,
    ):
        yield model, session


def load(model: Model, path: Path) -> Adapter:
    files = open_adapter(path, model.config)
    try:
        return Adapter.load(model, files)
    finally:
        files.close()


def logits(session: Session, adapters=(None,)) -> np.ndarray:
    """Of every token of one prompt, run once for each of the adapters in one batch."""
    ids, n = prompt(LENGTH), len(adapters)
    blocks = -(-LENGTH // BLOCK_TOKENS)
    batch = Batch(
        ids * n,
        [i * LENGTH for i in range(n + 1)],
        [0] * n,
        [list(range(i * blocks, (i + 1) * blocks)) for i in range(n)],
        list(range(n * LENGTH)),
        adapters=None if set(adapters) == {None} else list(adapters),
    )
    return session.step(batch).reshape(n, LENGTH, -1).copy()


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() / np.abs(expected).max() < 2e-4


def assert_as_merged(path: Path, model: TinyModel, whole: TinyModel, max_rank: int) -> None:
    """The adapter at ``path`` beside a model gives the logits of the ``whole``."""
    with opened(write_hf(whole, path.parent / "merged")) as (_, session):
        expected = logits(session)
    with opened(write_hf(model, path.parent / "base"), max_rank) as (base, session):
        adapter = load(base, path)
        assert_close(logits(session, [adapter]), expected)
        adapter.close()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_an_adapter_gives_the_logits_of_the_merged_model(family, kind, tmp_path):
    """GGUF llama models store rows of Q and K in another order than the adapter's."""
    model = tiny_model(family)
    tensors = lora_tensors(model, rank=4, seed=1)
    path = write_adapter(tmp_path / "adapter", tensors, lora_config(4, 8))

    def write(one, name):
        if kind == "hf":
            return write_hf(one, tmp_path / name)
        return write_gguf(one, tmp_path / f"{name}.gguf")

    with opened(write(merged(model, tensors, lambda _: 2.0), "merged")) as (_, session):
        expected = logits(session)
    with opened(write(model, "base"), 4) as (base, session):
        plain = logits(session)
        adapter = load(base, path)
        assert_close(logits(session, [adapter]), expected)
        assert np.abs(plain - expected).max() / np.abs(expected).max() > 0.05
        adapter.close()


@pytest.mark.parametrize("kind", ["hf", "gguf"])
@pytest.mark.parametrize("name", ["ernie4_5", "glm"])
def test_an_adapter_of_heads_that_turn_by_neighbours(name, kind, tmp_path):
    """Rows of its B for Q and K are in the order of the model's files, as a whole or by half."""
    model = family_model(name)
    modules = ("q_proj", "k_proj", "v_proj", "o_proj")
    tensors = lora_tensors(model, rank=4, seed=5, modules=modules)
    path = write_adapter(tmp_path / "adapter", tensors, lora_config(4, 8))
    whole = write_model(merged(model, tensors, lambda _: 2.0), tmp_path / "merged")
    with opened(whole) as (_, session):
        expected = logits(session)
    base = tmp_path / "base.gguf"
    file = write_model(model, tmp_path / "base") if kind == "hf" else write_model_gguf(model, base)
    with opened(file, 4) as (base_model, session):
        adapter = load(base_model, path)
        assert_close(logits(session, [adapter]), expected)
        adapter.close()


FUSED = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")
# The modules of families that call them otherwise, have several in one, or have states.
OWN_MODULES = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "glm4": (*ATTENTION, "gate_up_proj", "down_proj"),
    "gpt_neox": FUSED,
    "falcon": FUSED,
    "falcon_new": FUSED,
    "starcoder2": (*ATTENTION, "c_fc", "c_proj"),
    "phi": (*ATTENTION[:3], "dense", "fc1", "fc2"),
    "lfm2": (*ATTENTION[:3], "out_proj", "in_proj", "w1", "w2", "w3"),
    "qwen3_next": (*ATTENTION, "in_proj_qkvz", "in_proj_ba", "out_proj"),
    "qwen3_5": (
        *ATTENTION,
        *GATED,
        *(f"in_proj_{part}" for part in ("qkv", "z", "a", "b")),
        "out_proj",
    ),
    "kimi_linear": ("k_proj", "v_proj", "b_proj", "o_proj"),
    "bailing_hybrid": ("k_proj", "v_proj", "b_proj", "f_proj", "dense"),
    "nemotron_h": (*ATTENTION, "in_proj", "out_proj", "up_proj", "down_proj"),
    "granitemoehybrid": (*ATTENTION, "in_proj", "out_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "falcon_h1": (*ATTENTION, *GATED, "in_proj", "out_proj"),
    "falcon_h1_norm": (*ATTENTION, *GATED, "in_proj", "out_proj"),
}
INPUTS_FIRST = ("gpt2",)  # what directories have of matrices; A and B are as ever


def turned(model):
    """The model with the matrices of its layers turned around where its family has inputs first."""
    if model.name not in INPUTS_FIRST:
        return model
    tensors = {
        name: array.T.copy() if ".h." in name and array.ndim == 2 else array
        for name, array in model.tensors.items()
    }
    return replace(model, tensors=tensors)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in OWN_MODULES
        for kind in ("hf", "gguf")
        # Whose GGUF files do not say what has multiplied their tensors.
        if kind == "hf" or not name.startswith(MULTIPLIED)
    ],
)
def test_an_adapter_has_the_modules_of_its_family(name, kind, tmp_path):
    model = family_model(name)
    tensors = lora_tensors(turned(model), rank=4, seed=6, modules=OWN_MODULES[name])
    adapted = {key.split(".lora_")[0].rpartition(".")[2] for key in tensors}
    assert adapted == set(OWN_MODULES[name])
    config = lora_config(4, 8, fan_in_fan_out=name in INPUTS_FIRST)
    path = write_adapter(tmp_path / "adapter", tensors, config)
    sum_of = turned(merged(turned(model), tensors, lambda _: 2.0))
    whole = write_model(sum_of, tmp_path / "merged")
    with opened(whole) as (_, session):
        expected = logits(session)
    base = tmp_path / "base.gguf"
    file = write_model(model, tmp_path / "base") if kind == "hf" else write_model_gguf(model, base)
    with opened(file, 4) as (base_model, session):
        plain = logits(session)
        adapter = load(base_model, path)
        found = logits(session, [adapter, None, adapter])
        adapter.close()
    assert_close(found[:1], expected)
    assert np.array_equal(found[1:2], plain)
    assert np.array_equal(found[2], found[0])
    assert np.abs(plain - expected).max() / np.abs(expected).max() > 0.05


def test_an_adapter_of_multiplied_matrices_beside_packed_ones(tmp_path):
    """And one in BF16, whose rows are not rounded once more."""
    model = family_model("falcon_h1")
    tensors = lora_tensors(model, rank=4, seed=8, modules=OWN_MODULES["falcon_h1"])
    path = write_adapter(tmp_path / "adapter", tensors, lora_config(4, 8), "BF16")
    with opened(write_model(merged(model, tensors, lambda _: 2.0), tmp_path / "whole")) as (_, one):
        expected = logits(one)
    packed = write_as_packed(write_model(model, tmp_path / "base"), tmp_path / "packed")
    with opened(packed, 4) as (base, session):
        adapter = load(base, path)
        assert_close(logits(session, [adapter]), expected)
        adapter.close()


def test_an_adapter_of_multiplied_matrices_is_refused_where_nothing_says_by_what(tmp_path):
    model = family_model("falcon_h1")
    tensors = lora_tensors(model, rank=4, seed=8, modules=("k_proj",))
    path = write_adapter(tmp_path / "adapter", tensors, lora_config(4, 8))
    with open_checkpoint(write_model_gguf(model, tmp_path / "m.gguf")) as checkpoint:
        config = checkpoint.config
    with pytest.raises(
        ModelFileError, match=r"self_attn\.k_proj: the matrices .* multiplied by factors"
    ):
        open_adapter(path, config)
    with open_checkpoint(write_case("falcon_h1", tmp_path / "hf")) as checkpoint:
        config = replace(checkpoint.config, row_multipliers=(1.0, 2.0))
    with pytest.raises(ModelFileError, match="multiplied by factors that only its"):
        open_adapter(path, config)


@pytest.mark.parametrize("dtypes", ["F16", "BF16", "F32 BF16 F16"])
def test_every_stored_type_is_exact(dtypes, tmp_path):
    """Mixed types too: the values are the merged ones, so only sums differ."""
    model = tiny_model("llama3")
    tensors = lora_tensors(model, rank=3, seed=2)
    path = write_adapter(tmp_path / "adapter", tensors, lora_config(3, 3), dtypes)
    assert_as_merged(path, model, merged(model, tensors, lambda _: 1.0), 64)


def test_patterns_and_rslora_choose_the_scale(tmp_path):
    model = tiny_model("llama2")
    tensors = lora_tensors(model, rank=4, seed=3, modules=("q_proj", "down_proj"))
    tensors |= lora_tensors(model, rank=2, seed=4, modules=("gate_proj",))
    config = lora_config(
        4,
        6,
        use_rslora=True,
        rank_pattern={"gate_proj": 2},
        # The one in the middle is the whole name of no module.
        alpha_pattern={
            "^model.layers.1.self_attn.q_proj": 1,
            "^model.layers.0": 99,
            "down_proj$": 10,
        },
    )

    def scale(path: str) -> float:
        if path == "model.layers.1.self_attn.q_proj":
            return 1 / math.sqrt(4)
        if path.endswith("down_proj"):
            return 10 / math.sqrt(4)
        return 6 / math.sqrt(2 if path.endswith("gate_proj") else 4)

    path = write_adapter(tmp_path / "adapter", tensors, config)
    assert_as_merged(path, model, merged(model, tensors, scale), 4)


def test_adapters_in_one_batch_are_what_each_is_alone(tmp_path):
    """Bit for bit, in any order, with some of them missing."""
    model = tiny_model("qwen2")
    paths = [
        write_adapter(
            tmp_path / str(rank), lora_tensors(model, rank=rank, seed=rank), lora_config(rank, 8)
        )
        for rank in (2, 40)
    ]
    with opened(write_hf(model, tmp_path / "base"), 40) as (base, session):
        a, b = (load(base, path) for path in paths)
        alone = {one: logits(session, [one])[0] for one in (None, a, b)}
        assert not np.array_equal(alone[a], alone[b])
        for mix in ([a, b, None], [None, b, b, a, None, a], [b, a]):
            for one, found in zip(mix, logits(session, mix), strict=True):
                assert np.array_equal(found, alone[one])
        assert np.array_equal(logits(session)[0], alone[None])
        a.close()
        b.close()


def test_what_a_session_does_not_take_is_refused(tmp_path):
    model = tiny_model("llama2")
    tensors = lora_tensors(model, rank=4, seed=5)
    path = write_adapter(tmp_path / "adapter", tensors, lora_config(4, 4))
    directory = write_hf(model, tmp_path / "base")
    with opened(directory) as (base, session), opened(directory, 2) as (_, other):
        adapter = load(base, path)
        with pytest.raises(NativeError, match="takes no adapters"):
            logits(session, [adapter])
        with pytest.raises(NativeError, match="belongs to another model"):
            logits(other, [adapter])
        adapter.close()
        with pytest.raises(NativeError, match="closed"):
            logits(other, [adapter])
    with opened(directory, 2) as (base, session):
        adapter = load(base, path)
        with pytest.raises(NativeError, match="has rank 4, the session takes 2"):
            logits(session, [adapter])
        adapter.close()


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    model = tiny_model("llama2")
    tensors = lora_tensors(model, rank=4, seed=6)
    tensors["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"][7, 2] = np.nan
    path = write_adapter(tmp_path / "adapter", tensors, lora_config(4, 4))
    with (
        opened(write_hf(model, tmp_path / "base"), 4) as (base, _),
        pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.up_proj: .* B: row 7 holds NaN"),
    ):
        load(base, path)
