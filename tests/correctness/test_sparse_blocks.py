"""Sparse attention in blocks: which ones an index chooses; no bit depends on how it is computed."""

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

N_TOKENS = 235
LONG = cases(1400, 3000)


def config_of(
    topk: int, block: int = 32, local: int = 1, heads: tuple[int, int, int] = (6, 2, 2), **also
) -> ModelConfig:
    """Three layers, the second one without an index; heads, KV heads and index heads."""
    sparse = Attention(
        n_heads=heads[0],
        n_kv_heads=heads[1],
        head_dim=40,
        rope=0,
        qk_norm="head",
        index_topk=topk,
        index_heads=heads[2],
        index_dim=24,
        index_block=block,
        index_local=local,
        **also,
    )
    layers = tuple(Layer(one, Gated(96)) for one in (sparse, dense_attention(sparse), sparse))
    return ModelConfig("random", 64, VOCAB, 2 * LONG, 1e-5, False, (Rope(1e4, 16),), layers)


def dense_attention(attention: Attention) -> Attention:
    none = {"index_topk": 0, "index_heads": 0, "index_dim": 0, "index_block": 0, "index_local": 0}
    return replace(attention, **none)


def dense(config: ModelConfig) -> ModelConfig:
    """The same model, whose queries see all tokens."""
    layers = []
    for layer in config.layers:
        assert layer.attention is not None
        layers.append(replace(layer, attention=dense_attention(layer.attention)))
    return replace(config, layers=tuple(layers))


def dense_weights(weights):
    return {key: values for key, values in weights.items() if not key[0].name.startswith("INDEX")}


def case(config: ModelConfig, n: int, seed: int = 5):
    rng = np.random.default_rng(seed)
    return random_weights(rng, config), [int(token) for token in rng.integers(0, VOCAB, n)]


def session_of(model: Model, n: int, threads: int, kv_type: str = "f32") -> Session:
    return Session(
        model,
        threads=threads,
        blocks=2 * -(-n // BLOCK_TOKENS) + 1,
        max_batch_tokens=n,
        max_batch_logits=n,
        kv_type=kv_type,
    )


def logits(session: Session, tokens: list[int], chunk: int, first: int = 0) -> np.ndarray:
    """All logits of a text in chunks, in blocks of the cache from ``first`` on, backwards."""
    blocks, found = -(-len(tokens) // BLOCK_TOKENS), []
    for at in range(0, len(tokens), chunk):
        now = tokens[at : at + chunk]
        table = [list(range(first, first + blocks))[::-1]]
        batch = Batch(now, [0, len(now)], [at], table, list(range(len(now))))
        found.append(session.step(batch)[: len(now)].copy())
    return np.concatenate(found)


CASES = [
    (64, 32, 1, (6, 2, 2)),
    (32, 32, 1, (3, 1, 1)),  # its own block alone
    (192, 64, 2, (12, 6, 3)),  # index heads for two KV heads each
    (96, 32, 1, (36, 9, 9)),  # more index heads than a kernel takes at once
    (64, 32, 2, (4, 4, 1)),  # nothing is left to choose
]


@pytest.mark.parametrize(("topk", "block", "local", "heads"), CASES)
def test_no_bit_depends_on_chunks_threads_or_level(topk, block, local, heads):
    config = config_of(topk, block, local, heads)
    weights, tokens = case(config, N_TOKENS, seed=topk)
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, margin = definition.logits_of(config, exact, tokens)
    assert margin > 1e-6
    first = None
    for isa in usable_levels():
        with Model.load(checkpoint(config, weights), isa=isa) as model:
            for chunk, threads in ((N_TOKENS, 1), (1, 3), (7, 2), (40, 5), (N_TOKENS, 16)):
                with session_of(model, N_TOKENS, threads) as session:
                    found = logits(session, tokens, chunk)
                first = found if first is None else first
                assert found.tobytes() == first.tobytes(), (isa, chunk, threads)
    assert first is not None
    assert np.abs(first - wanted).max() / np.abs(wanted).max() < 2e-5


@pytest.mark.parametrize("kv_type", ["f16", "int8", "k8v4", "q4"])
def test_small_caches_choose_alike_however_they_are_computed(kv_type):
    config = config_of(96, heads=(12, 2, 2))
    weights, tokens = case(config, N_TOKENS, seed=11)
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, _ = definition.logits_of(config, exact, tokens)
    first = None
    for isa in usable_levels():
        with Model.load(checkpoint(config, weights), isa=isa) as model:
            for chunk, threads in ((N_TOKENS, 1), (1, 3), (40, 16)):
                with session_of(model, N_TOKENS, threads, kv_type) as session:
                    found = logits(session, tokens, chunk)
                first = found if first is None else first
                assert found.tobytes() == first.tobytes(), (isa, chunk, threads)
    assert first is not None
    errors = np.abs(first - wanted).max(axis=1) / np.abs(wanted).max()
    most = {"f16": 0.002, "int8": 0.05, "k8v4": 0.3, "q4": 0.5}[kv_type]
    assert np.median(errors) < most


def test_rows_that_see_no_more_than_the_index_chooses_are_those_of_dense_attention():
    config = config_of(96)
    weights, tokens = case(config, N_TOKENS)
    with (
        Model.load(checkpoint(config, weights)) as sparse,
        Model.load(checkpoint(dense(config), dense_weights(weights))) as whole,
        session_of(sparse, N_TOKENS, 2) as one,
        session_of(whole, N_TOKENS, 2) as other,
    ):
        found, all_seen = logits(one, tokens, 50), logits(other, tokens, 50)
    assert found[:96].tobytes() == all_seen[:96].tobytes()
    differences = np.abs(found[96:] - all_seen[96:]).max(axis=1)
    assert (differences > 1e-3 * np.abs(all_seen).max()).all()


def test_of_equal_scores_the_first_blocks_are_chosen():
    """Without index queries all scores are 0: queries see the first blocks and their own."""
    config = config_of(96)
    weights, tokens = case(config, N_TOKENS)
    for layer in (0, 2):
        weights[Role.INDEX_QUERY, layer] = np.zeros_like(weights[Role.INDEX_QUERY, layer])
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, margin = definition.logits_of(config, exact, tokens)
    assert margin == np.inf
    with (
        Model.load(checkpoint(config, weights)) as model,
        session_of(model, N_TOKENS, 2) as session,
    ):
        found = logits(session, tokens, 20)
    assert np.abs(found - wanted).max() / np.abs(wanted).max() < 2e-5


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8", "q4"])
def test_cached_and_copied_blocks_have_their_index_keys(kv_type):
    """A text that begins with blocks of another one, or with copies of them, has the same bits."""
    config, hit = config_of(64), 5 * BLOCK_TOKENS
    weights, tokens = case(config, N_TOKENS)
    with (
        Model.load(checkpoint(config, weights)) as model,
        session_of(model, N_TOKENS, 2, kv_type) as session,
    ):
        wanted = logits(session, tokens, N_TOKENS)  # in blocks 7 to 0
        rest = tokens[hit:]
        rows, starts = list(range(len(rest))), [0, len(rest)]
        table = [[7, 6, 5, 4, 3, 9, 10, 11]]
        found = session.step(Batch(rest, starts, [hit], table, rows))
        assert found[: len(rest)].tobytes() == wanted[hit:].tobytes()
        copies = [(7, 12), (5, 13)]
        table = [[12, 6, 13, 4, 3, 14, 15, 8]]
        copied = Batch(rest, starts, [hit], table, rows, block_copies=copies)
        assert session.step(copied)[: len(rest)].tobytes() == wanted[hit:].tobytes()
        other = logits(session, tokens[::-1][: 3 * BLOCK_TOKENS], 30, first=14)  # beside it
        both = [*tokens[-1:], tokens[::-1][3 * BLOCK_TOKENS - 1]]
        tables = [[12, 6, 13, 4, 3, 9, 10, 11], [16, 15, 14, 0, 0, 0, 0, 0]]
        last = Batch(both, [0, 1, 2], [N_TOKENS - 1, 3 * BLOCK_TOKENS - 1], tables, [0, 1])
        found = session.step(last)
        assert found[0].tobytes() == wanted[-1].tobytes()
        assert found[1].tobytes() == other[-1].tobytes()


@pytest.mark.parametrize(("topk", "block"), [(128, 32), (1152, 128)])
def test_long_contexts(topk, block):
    """Scores of many tokens in pieces, and more chosen tokens than a softmax goes through at once.

    Near choices differ from those of float64, which changes little.
    """
    config = config_of(topk, block)
    weights, tokens = case(config, LONG)
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, _ = definition.logits_of(config, exact, tokens)
    with Model.load(checkpoint(config, weights)) as model:
        with session_of(model, LONG, 1) as session:
            found = logits(session, tokens, 512)
        with session_of(model, LONG, 4) as session:
            assert logits(session, tokens, LONG).tobytes() == found.tobytes()
            table = [list(range(-(-LONG // 32)))[::-1]]
            last = Batch(tokens[-1:], [0, 1], [LONG - 1], table, [0])
            assert session.step(last)[0].tobytes() == found[-1].tobytes()
    errors = np.abs(found - wanted).max(axis=1) / np.abs(wanted).max()
    assert np.median(errors) < 5e-5
    assert np.mean(errors < 0.02) > 0.97


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8", "q4"])
def test_the_cache_has_a_row_of_index_keys_where_a_layer_has_an_index(kv_type):
    """Beside codes they are halves."""
    config = config_of(64)
    weights, _ = case(config, 1)
    with (
        Model.load(checkpoint(config, weights)) as model,
        Model.load(checkpoint(dense(config), dense_weights(weights))) as whole,
    ):
        block = model.kv_layout(kv_type).block_bytes
        plain = whole.kv_layout(kv_type).block_bytes
    index = 24 * (4 if kv_type == "f32" else 2)
    # The layer without an index has room that is as large.
    assert block == plain + 3 * BLOCK_TOKENS * index


def test_a_sequence_is_refused_that_the_index_has_no_room_for():
    """A table may name a block twice, so blocks alone do not bound a sequence."""
    config = config_of(32)
    weights, _ = case(config, 1)
    with (
        Model.load(checkpoint(config, weights)) as model,
        Session(model, threads=1, blocks=2, max_batch_tokens=1, max_batch_logits=1) as session,
    ):
        session.step(Batch([1], [0, 1], [63], [[0, 1]], [0]))
        with pytest.raises(NativeError, match=r"has 65 tokens, the index .* room for 64"):
            session.step(Batch([1], [0, 1], [64], [[0, 1, 0]], [0]))


def test_an_index_that_is_not_finite_fails_the_step():
    config = config_of(32)
    weights, tokens = case(config, 65)
    for role in (Role.INDEX_QUERY_NORM, Role.INDEX_KEY_NORM):
        weights[role, 0] = np.full_like(weights[role, 0], 1e30)  # products are infinite
    with (
        Model.load(checkpoint(config, weights)) as model,
        session_of(model, 65, 2) as session,
        pytest.raises(NativeError, match="infinity"),
    ):
        session.step(Batch(tokens, [0, 65], [0], [[0, 1, 2]], [64]))
