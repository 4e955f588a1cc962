"""Sparse attention: which tokens an index chooses; no bit depends on how it is computed."""

from dataclasses import replace

import numpy as np
import pytest

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.native.library import NativeError
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session, usable_levels
from random_checkpoints import VOCAB, checkpoint, random_weights
from tests.golden.reference import program as definition
from topics import cases

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

N_TOKENS = 75
LONG = cases(1400, 3000)


def config_of(topk: int, n_heads: int = 5, index_heads: int = 13, dim: int = 24) -> ModelConfig:
    """Three layers; the second one uses the choice of the first."""
    own = Attention(
        n_heads=n_heads,
        n_kv_heads=1,
        head_dim=40,
        rope=0,
        latent_rank=64,
        rope_dim=16,
        value_dim=32,
        query_rank=48,
        latent_eps=1e-6,
        index_topk=topk,
        index_heads=index_heads,
        index_dim=dim,
    )
    shared = replace(own, index_heads=0, index_dim=0)
    layers = tuple(Layer(one, Gated(96)) for one in (own, shared, own))
    return ModelConfig("random", 64, VOCAB, 2 * LONG, 1e-5, False, (Rope(1e4, 16),), layers)


def dense(config: ModelConfig) -> ModelConfig:
    """The same model, whose queries see all tokens."""
    layers = []
    for layer in config.layers:
        assert layer.attention is not None
        attention = replace(layer.attention, index_topk=0, index_heads=0, index_dim=0)
        layers.append(replace(layer, attention=attention))
    return replace(config, layers=tuple(layers))


def dense_weights(weights):
    return {key: values for key, values in weights.items() if not key[0].name.startswith("INDEX")}


def case(config: ModelConfig, n: int, seed: int = 5):
    rng = np.random.default_rng(seed)
    return random_weights(rng, config), [int(token) for token in rng.integers(0, VOCAB, n)]


def session_of(model: Model, n: int, threads: int, kv_type: str = "f32") -> Session:
    blocks = 2 * -(-n // BLOCK_TOKENS) + 1
    return Session(
        model,
        threads=threads,
        blocks=blocks,
        max_batch_tokens=n,
        max_batch_logits=n,
        kv_type=kv_type,
    )


def logits(session: Session, tokens: list[int], chunk: int, first: int = 0) -> np.ndarray:
    """All logits of a text in chunks, from block ``first`` of the cache on."""
    blocks, found = -(-len(tokens) // BLOCK_TOKENS), []
    for at in range(0, len(tokens), chunk):
        now = tokens[at : at + chunk]
        table = [list(range(first, first + blocks))]
        batch = Batch(now, [0, len(now)], [at], table, list(range(len(now))))
        found.append(session.step(batch)[: len(now)].copy())
    return np.concatenate(found)


@pytest.mark.parametrize(("topk", "n_heads", "index_heads"), [(7, 5, 13), (1, 1, 1), (33, 70, 8)])
def test_no_bit_depends_on_chunks_threads_or_level(topk, n_heads, index_heads):
    config = config_of(topk, n_heads, index_heads)
    weights, tokens = case(config, N_TOKENS, seed=topk)
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, margin = definition.logits_of(config, exact, tokens)
    assert margin > 1e-6
    first = None
    for isa in usable_levels():
        with Model.load(checkpoint(config, weights), isa=isa) as model:
            for chunk, threads in ((N_TOKENS, 1), (1, 3), (7, 2), (40, 5)):
                with session_of(model, N_TOKENS, threads) as session:
                    found = logits(session, tokens, chunk)
                first = found if first is None else first
                assert found.tobytes() == first.tobytes(), (isa, chunk, threads)
    assert first is not None
    assert np.abs(first - wanted).max() / np.abs(wanted).max() < 2e-5


def test_rows_that_see_no_more_than_the_index_chooses_are_those_of_dense_attention():
    config = config_of(33)
    weights, tokens = case(config, N_TOKENS)
    with (
        Model.load(checkpoint(config, weights)) as sparse,
        Model.load(checkpoint(dense(config), dense_weights(weights))) as whole,
        session_of(sparse, N_TOKENS, 2) as one,
        session_of(whole, N_TOKENS, 2) as other,
    ):
        found, all_seen = logits(one, tokens, 50), logits(other, tokens, 50)
    assert found[:33].tobytes() == all_seen[:33].tobytes()
    differences = np.abs(found[33:] - all_seen[33:]).max(axis=1)
    assert (differences > 1e-3 * np.abs(all_seen).max()).all()


def test_of_equal_scores_the_first_tokens_are_chosen():
    """Without weights of heads all scores are 0: queries see the first tokens only."""
    config = config_of(7)
    weights, tokens = case(config, N_TOKENS)
    for layer in (0, 2):
        weights[Role.INDEX_WEIGHTS, layer] = np.zeros_like(weights[Role.INDEX_WEIGHTS, layer])
    changed = tokens[:7] + tokens[8:9] + tokens[8:]  # another token at place 7, which nobody sees
    with (
        Model.load(checkpoint(config, weights)) as model,
        session_of(model, N_TOKENS, 2) as session,
    ):
        found, other = logits(session, tokens, 20), logits(session, changed, 20)
    assert found[8:].tobytes() == other[8:].tobytes()
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, _ = definition.logits_of(config, exact, tokens)
    assert np.abs(found - wanted).max() / np.abs(wanted).max() < 2e-5


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8", "q4"])
def test_cached_and_copied_blocks_have_their_index_keys(kv_type):
    """A text that begins with blocks of another one, or with copies of them, has the same bits."""
    config = config_of(9)
    weights, tokens = case(config, N_TOKENS)
    with (
        Model.load(checkpoint(config, weights)) as model,
        session_of(model, N_TOKENS, 2, kv_type) as session,
    ):
        wanted = logits(session, tokens, N_TOKENS)
        rest = tokens[2 * BLOCK_TOKENS :]
        rows = list(range(len(rest)))
        starts = [0, len(rest)]
        hit = Batch(rest, starts, [2 * BLOCK_TOKENS], [[0, 1, 5]], rows)
        assert session.step(hit)[: len(rest)].tobytes() == wanted[2 * BLOCK_TOKENS :].tobytes()
        copies = [(0, 3), (1, 4)]
        copied = Batch(rest, starts, [2 * BLOCK_TOKENS], [[3, 4, 6]], rows, block_copies=copies)
        assert session.step(copied)[: len(rest)].tobytes() == wanted[2 * BLOCK_TOKENS :].tobytes()
        other = logits(session, tokens[::-1], 30, first=3)  # beside them, in other blocks
        both = [*tokens[-1:], *tokens[:1]]
        tables = [[0, 1, 2], [3, 4, 5]]
        last = Batch(both, [0, 1, 2], [N_TOKENS - 1] * 2, tables, [0, 1])
        found = session.step(last)
        assert found[0].tobytes() == wanted[-1].tobytes()
        assert found[1].tobytes() == other[-1].tobytes()


@pytest.mark.parametrize("topk", [64, 1100])
def test_long_contexts(topk):
    """Scores of many tokens in pieces, and more chosen tokens than a softmax goes through at once.

    Near choices differ from those of float64, which changes little.
    """
    config = config_of(topk, n_heads=3)
    weights, tokens = case(config, LONG)
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, _ = definition.logits_of(config, exact, tokens)
    with Model.load(checkpoint(config, weights)) as model:
        with session_of(model, LONG, 1) as session:
            found = logits(session, tokens, 512)
        with session_of(model, LONG, 4) as session:
            assert logits(session, tokens, LONG).tobytes() == found.tobytes()
            last = Batch(tokens[-1:], [0, 1], [LONG - 1], [list(range(-(-LONG // 32)))], [0])
            assert session.step(last)[0].tobytes() == found[-1].tobytes()
    errors = np.abs(found - wanted).max(axis=1) / np.abs(wanted).max()
    assert np.median(errors) < 5e-5
    assert np.mean(errors < 0.02) > 0.97


def test_the_cache_has_a_row_of_index_keys_where_a_layer_has_an_index():
    config = config_of(7)
    weights, _ = case(config, 1)
    with Model.load(checkpoint(config, weights)) as model:
        block = model.kv_layout("f16").block_bytes
    # The layer without an index has room that is as large.
    assert block == 3 * BLOCK_TOKENS * (64 + 16 + 24) * 2


def test_a_sequence_is_refused_that_the_index_has_no_room_for():
    """A table may name a block twice, so blocks alone do not bound a sequence."""
    config = config_of(7)
    weights, _ = case(config, 1)
    with (
        Model.load(checkpoint(config, weights)) as model,
        Session(model, threads=1, blocks=2, max_batch_tokens=1, max_batch_logits=1) as session,
    ):
        session.step(Batch([1], [0, 1], [63], [[0, 1]], [0]))
        with pytest.raises(NativeError, match=r"has 65 tokens, the index .* room for 64"):
            session.step(Batch([1], [0, 1], [64], [[0, 1, 0]], [0]))
