"""A trained model quantized on text: what calibration buys, in perplexity on other text."""

import numpy as np
import pytest

from data_files import data
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.fit import model
from lanewise_quantizer.fit import source as fit_source
from lanewise_quantizer.fit.feedback import quantize_by_importance
from lanewise_quantizer.fit.forward import run
from lanewise_quantizer.fit.layer import STEPS
from lanewise_quantizer.fit.model import Plan, quantize_model
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.fit.tables import default_table
from lanewise_quantizer.quantize import join_rows
from topics import thorough

pytestmark = [pytest.mark.native, pytest.mark.slow]

WINDOW = 128


@pytest.fixture(scope="module")
def stories():
    path, text = data("models/stories260K-hf"), data("text/tinystories_val_yuninxia.txt")
    with open_checkpoint(path) as checkpoint:
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
        ids = tokenizer.encode(text.read_text()[:120_000], add_bos=False, parse_special=False)
        windows = np.array(ids[: len(ids) // WINDOW * WINDOW]).reshape(-1, WINDOW)
        yield Source(checkpoint), windows[64:192], windows[:48]


def perplexity(source, replaced, ids):
    def weights(role, layer=0):
        key = (role, layer)
        return replaced[key] if key in replaced else source(role, layer)

    logits = (run(source.config, weights, ids)[:, :-1] @ weights(Role.TOKEN_EMBEDDING).T).astype(
        np.float64
    )
    logits -= logits.max(axis=-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return float(np.exp(-np.take_along_axis(log_p, ids[:, 1:, None], axis=-1).mean()))


def keeper(fitted):
    """Collects matrices, whose rows may come in parts, as weights."""

    def keep(role, layer, parts):
        fitted[role, layer] = np.concatenate([part.decode() for part in parts])

    return keep


@pytest.mark.parametrize("name", ["cb2", *thorough("t2", "q4_0")])
def test_calibration_takes_most_of_the_loss_away(name, stories):
    """Much of the log perplexity lost by rounding is given back."""
    source, calibration, held_out = stories
    kind = CODED_TYPES[name]
    table = default_table(kind) if kind.needs_table else None
    matrices = [(role, n) for n in range(source.config.n_layers) for step in STEPS for role in step]
    matrices = [key for key in matrices if source.tensors[key].cols % 32 == 0]  # not FFN_DOWN
    rounded = {
        key: quantize_by_importance(source(*key), kind, None, table).decode() for key in matrices
    }
    fitted = {}
    plan = Plan(
        lambda role, _: None if role in (Role.TOKEN_EMBEDDING, Role.FFN_DOWN) else kind,
        {} if table is None else {name: table},
    )
    quantize_model(source, calibration, plan, keeper(fitted))
    assert set(fitted) == set(matrices)
    base, plain, best = (
        np.log(perplexity(source, replaced, held_out)) for replaced in ({}, rounded, fitted)
    )
    assert base < best < plain
    assert best - base < 0.8 * (plain - base)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "iq4_nl", "mxfp4", "q4_k"])
def test_what_a_type_holds_is_told_from_what_it_rounds(name):
    """Rows that were in the type once, and in eight bits since, lie on its grid; no others do."""
    kind, rng = CODED_TYPES[name], np.random.default_rng(1)
    others = rng.standard_normal((16, 512), np.float32)
    held = quantize_by_importance(others, kind, None).decode()
    eighths = quantize_by_importance(held, CODED_TYPES["q8_0"], None).decode()
    moved = held * (1 + 0.1 * rng.standard_normal(held.shape, np.float32))
    weights = np.concatenate([held, eighths, others, moved])
    found = model.on_grid(weights, quantize_by_importance(weights, kind, None))
    assert found[:32].all()
    assert not found[32:].any()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cb4", "cb2"])
def test_a_tied_embedding_is_fitted_to_the_inputs_of_the_head(name, stories):
    """Alone in few bits, it costs less than when each of its weights is rounded."""
    source, calibration, held_out = stories
    assert source.config.tied_embeddings
    kind, key = CODED_TYPES[name], (Role.TOKEN_EMBEDDING, 0)
    table = default_table(kind)
    rounded = {key: quantize_by_importance(source(*key), kind, None, table).decode()}
    fitted = {}
    plan = Plan(lambda role, _: kind if role == Role.TOKEN_EMBEDDING else None, {name: table})
    quantize_model(source, calibration, plan, keeper(fitted))
    assert set(fitted) == {key}
    base, plain, best = (
        np.log(perplexity(source, replaced, held_out)) for replaced in ({}, rounded, fitted)
    )
    assert best - base < 0.8 * (plain - base)


def test_an_embedding_comes_in_parts_that_make_no_difference(stories, monkeypatch):
    source, calibration, _ = stories
    kind = CODED_TYPES["q4_0"]
    plan = Plan(lambda role, _: kind if role == Role.TOKEN_EMBEDDING else None, {})
    texts, matrices = [], []
    monkeypatch.setattr(model, "calibrate", lambda _source, text, *_: texts.append(text.x))
    for weights in (1 << 24, 5000):
        monkeypatch.setattr(fit_source, "SLAB_WEIGHTS", weights)
        parts = []
        quantize_model(source, calibration, plan, lambda *given, to=parts: to.extend(given[2]))
        assert {part.rows % 8 for part in parts[:-1]} <= {0}
        matrices.append(parts)
    whole, cut = matrices
    assert (len(whole), len(cut)) == (1, 8)
    assert (join_rows(cut).codes == whole[0].codes).all()
    # Some BLAS kernels add in another order where there are fewer rows: a step of a scale in f16.
    np.testing.assert_allclose(texts[0], texts[1], rtol=2**-9)
    assert (texts[0] == whole[0].decode()[calibration]).all()
