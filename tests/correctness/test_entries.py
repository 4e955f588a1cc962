"""Attention to shared rows and to entries of several tokens: no bit depends on how it is computed.

tests/golden/families compares it with transformers; here are other shapes, and longer texts.
"""

from dataclasses import replace

import numpy as np
import pytest

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import Attention, Experts, Gated, Layer, ModelConfig, Rope
from lanewise.loading.programs.native_program import check_program, program_tensors
from lanewise.native.library import NativeError
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session, usable_levels
from random_checkpoints import VOCAB, checkpoint
from tests.correctness.test_sparse_attention import logits, session_of
from topics import cases

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

N_TOKENS = 139
LONG = cases(700, 2600)
SLIDING = Attention(
    n_heads=6,
    n_kv_heads=1,
    head_dim=48,
    rope=0,
    window=37,
    sinks=True,
    rope_dim=10,
    query_rank=20,
    shared_rows=True,
    output_groups=3,
    output_rank=32,
)
HEAVY = replace(SLIDING, compress=64)
SPARSE = replace(
    SLIDING, compress=4, overlap=True, index_topk=5, index_heads=11, index_dim=14, window=9
)
EXPERTS = Experts(
    5, 2, 32, "sqrt_softplus", renormalize=True, activation="limited", limit=0.75, shared_limit=0.5,
    shared_size=64, choice_bias=True,
)  # fmt: skip
LOOKED_UP = replace(EXPERTS, looks_up=True, choice_bias=False)


def config_of(*attentions: Attention, streams: int = 3) -> ModelConfig:
    layers = tuple(
        Layer(one, LOOKED_UP if number == 0 else EXPERTS) for number, one in enumerate(attentions)
    )
    return ModelConfig(
        *("random", 96, VOCAB, 2 * LONG, 1e-5, False, (Rope(1e4, 10),), layers),
        hyper_streams=streams,
        hyper_iterations=5 if streams else 0,
        hyper_eps=float(np.float32(1e-6)) if streams else 0.0,
    )


def weights_of(config: ModelConfig, seed: int = 5) -> dict[tuple[Role, int], np.ndarray]:
    """Random tensors of the program, as the library lists them."""
    rng, found = np.random.default_rng(seed), {}
    for one in program_tensors(config):
        if one.optional:
            continue
        shape = (one.cols,) if one.is_vector else (one.rows, one.cols)
        values = rng.uniform(-1, 1, shape)
        if one.role is Role.ROUTER_TABLE:
            n_used = LOOKED_UP.n_used
            first = rng.integers(0, LOOKED_UP.n, (VOCAB, 1))
            values = ((first + np.arange(n_used)) % LOOKED_UP.n).reshape(-1)
        elif one.role.name.endswith("NORM"):
            values = 1 + 0.2 * values
        elif not one.is_vector:
            values *= 2 / np.sqrt(one.cols)
        found[one.role, one.layer] = values.astype("f4")
    return found


def case(config: ModelConfig, n: int, seed: int = 5):
    rng = np.random.default_rng(seed)
    return weights_of(config, seed), [int(token) for token in rng.integers(0, VOCAB, n)]


@pytest.mark.parametrize(
    "config",
    [
        config_of(SPARSE, HEAVY, SLIDING),
        config_of(replace(SPARSE, n_heads=3)),
        config_of(replace(HEAVY, compress=32, window=None, overlap=True), streams=1),
        config_of(replace(SPARSE, compress=1, overlap=False, n_heads=66), HEAVY, streams=8),
        config_of(replace(HEAVY, compress=16, n_heads=1, output_groups=1), streams=0),
    ],
)
def test_no_bit_depends_on_chunks_threads_or_level(config: ModelConfig) -> None:
    weights, tokens = case(config, N_TOKENS)
    first = None
    for isa in usable_levels():
        with Model.load(checkpoint(config, weights), isa=isa) as model:
            for chunk, threads in ((N_TOKENS, 1), (1, 3), (7, 2), (40, 5)):
                with session_of(model, N_TOKENS, threads) as session:
                    found = logits(session, tokens, chunk)
                first = found if first is None else first
                assert found.tobytes() == first.tobytes(), (isa, chunk, threads)
    assert first is not None
    assert np.isfinite(first).all()


@pytest.mark.parametrize("attention", [SPARSE, HEAVY])
def test_a_query_sees_entries_of_tokens_outside_its_window(attention: Attention) -> None:
    """Another first token changes the last row by way of an entry, and by nothing else."""
    seen = config_of(attention, streams=0)
    not_seen = config_of(SLIDING, streams=0)
    changed = []
    for config in (seen, not_seen):
        config = replace(config, layers=(replace(config.layers[0], ffn=EXPERTS),))
        if config.layers[0].attention == SPARSE:  # all entries are seen
            wide = replace(SPARSE, index_topk=100)
            config = replace(config, layers=(replace(config.layers[0], attention=wide),))
        weights, tokens = case(config, N_TOKENS)
        other = [(tokens[0] + 1) % VOCAB, *tokens[1:]]
        with (
            Model.load(checkpoint(config, weights)) as model,
            session_of(model, N_TOKENS, 2) as session,
        ):
            one, two = logits(session, tokens, 50)[-1], logits(session, other, 50)[-1]
        changed.append(one.tobytes() != two.tobytes())
    assert changed == [True, False]


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("chunk", [5, N_TOKENS])
def test_cached_and_copied_blocks_have_their_entries(kv_type: str, chunk: int) -> None:
    """A text that begins with blocks of another one, or with copies of them, has the same bits."""
    config = config_of(SPARSE, replace(HEAVY, compress=32))
    weights, tokens = case(config, N_TOKENS)
    with (
        Model.load(checkpoint(config, weights)) as model,
        session_of(model, N_TOKENS, 2, kv_type) as session,
    ):
        wanted = logits(session, tokens, chunk)
        n, blocks = 3 * BLOCK_TOKENS, -(-N_TOKENS // BLOCK_TOKENS)
        rest = tokens[n:]
        rows, starts = list(range(len(rest))), [0, len(rest)]
        hit = Batch(rest, starts, [n], [[0, 1, 2, 8, 9]], rows)
        assert session.step(hit)[: len(rest)].tobytes() == wanted[n:].tobytes()
        copies = [(0, 5), (1, 6), (2, 7)]
        copied = Batch(rest, starts, [n], [[5, 6, 7, 8, 9]], rows, block_copies=copies)
        assert session.step(copied)[: len(rest)].tobytes() == wanted[n:].tobytes()
        other = logits(session, tokens[::-1], 30, first=blocks)  # beside them, in other blocks
        both = [*tokens[-1:], *tokens[:1]]
        tables = [list(range(blocks)), list(range(blocks, 2 * blocks))]
        last = Batch(both, [0, 1, 2], [N_TOKENS - 1] * 2, tables, [0, 1])
        found = session.step(last)
        assert found[0].tobytes() == wanted[-1].tobytes()
        assert found[1].tobytes() == other[-1].tobytes()


def test_long_contexts() -> None:
    """More rows than a softmax goes through at once, and scores of entries in pieces."""
    config = config_of(replace(SPARSE, index_topk=600, compress=1), HEAVY)
    weights, tokens = case(config, LONG)
    with Model.load(checkpoint(config, weights)) as model:
        with session_of(model, LONG, 1) as session:
            found = logits(session, tokens, 512)
        with session_of(model, LONG, 4) as session:
            assert logits(session, tokens, LONG).tobytes() == found.tobytes()
            last = Batch(tokens[-1:], [0, 1], [LONG - 1], [list(range(-(-LONG // 32)))], [0])
            assert session.step(last)[0].tobytes() == found[-1].tobytes()


def test_tokens_outside_the_window_give_back_their_blocks() -> None:
    """Entries have blocks of their own, which a text keeps; rows of tokens have a window."""
    config = config_of(SPARSE, replace(HEAVY, compress=32), SLIDING)
    weights, tokens = case(config, N_TOKENS)
    with Model.load(checkpoint(config, weights)) as model:
        layout = model.kv_layout("f32", groups_by_window=True)
        assert {*layout.windows} == {None, 9, 37}
        assert {*model.kv_layout("f32", groups_by_window=False).windows} == {None}
        with session_of(model, N_TOKENS, 2) as session:
            wanted = logits(session, tokens, 40)
        groups = layout.windows
        with Session(
            model,
            threads=2,
            blocks=len(groups) * 5 + 1,
            max_batch_tokens=N_TOKENS,
            max_batch_logits=N_TOKENS,
            kv_type="f32",
            groups_by_window=True,
        ) as session:
            found, spare = [], len(groups) * 5
            for at in range(0, N_TOKENS, 20):
                now = tokens[at : at + 20]
                tables = []
                for group, window in enumerate(groups):
                    gone = max(0, at + 1 - window) // BLOCK_TOKENS if window else 0
                    own = [group * 5 + i if i >= gone else spare for i in range(5)]
                    tables.append(own)
                batch = Batch(now, [0, len(now)], [at], [tables], list(range(len(now))))
                found.append(session.step(batch)[: len(now)].copy())
    assert np.concatenate(found).tobytes() == wanted.tobytes()


def test_a_sequence_is_refused_that_there_is_no_room_for() -> None:
    """A table may name a block twice, so blocks alone do not bound a sequence."""
    config = config_of(SPARSE)
    weights, _ = case(config, 1)
    with (
        Model.load(checkpoint(config, weights)) as model,
        Session(model, threads=1, blocks=2, max_batch_tokens=1, max_batch_logits=1) as session,
    ):
        session.step(Batch([1], [0, 1], [63], [[0, 1]], [0]))
        with pytest.raises(NativeError, match=r"has 65 tokens, what queries see has room for 64"):
            session.step(Batch([1], [0, 1], [64], [[0, 1, 0]], [0]))


def test_a_table_of_experts_that_there_are_not_is_refused() -> None:
    config = config_of(SPARSE)
    weights, _ = case(config, 1)
    for wrong in (5.0, -1.0, 0.5):
        weights[Role.ROUTER_TABLE, 0][7] = wrong
        with pytest.raises(NativeError, match=r"one of token 3 is .*must be an expert below 5"):
            Model.load(checkpoint(config, weights))


def test_codes_are_no_cache_of_shared_rows() -> None:
    config = config_of(SLIDING)
    weights, _ = case(config, 1)
    with (
        Model.load(checkpoint(config, weights)) as model,
        pytest.raises(NativeError, match=r"must be F16 .* rows are shared with the entries"),
    ):
        session_of(model, 32, 1, "int8")


@pytest.mark.parametrize(
    ("attention", "error"),
    [
        (replace(SLIDING, n_kv_heads=2), "n_kv_heads is 2, must be 1"),
        (replace(SLIDING, head_dim=40), "head_dim is 40, must be a multiple of 16"),
        (replace(SLIDING, query_rank=0), "query_rank is 0, must be 1 to"),
        (replace(SLIDING, rope_dim=8), "rope_dim is 8, which its rope must turn all of"),
        (replace(SLIDING, output_groups=4), "output_groups is 4, must divide n_heads"),
        (replace(SLIDING, output_groups=0), "output_groups is 0, must be 1 to 6"),
        (replace(SLIDING, output_rank=40), "output_rank is 40, must be a multiple of 32"),
        (replace(SLIDING, qk_norm="head"), "shared_rows is 1, with which biases, qk_norm"),
        (replace(SLIDING, values_are_keys=True), "shared_rows is 1, with which"),
        (replace(SLIDING, index_topk=4), "index_topk is 4, must be 0"),
        (replace(SLIDING, overlap=True), "overlap is 1, must be 0"),
        (replace(HEAVY, compress=48), "compress is 48, must divide 32 or be a multiple"),
        (replace(SPARSE, index_heads=0), "index_heads is 0, must be 1 to 256"),
        (replace(SPARSE, index_dim=8), "index_dim is 8, must be 10 to 512"),
        (replace(SLIDING, shared_rows=False, query_rank=0, rope_dim=0), "output_groups is 3, must"),
    ],
)
def test_what_is_no_attention_to_shared_rows_is_explained(attention: Attention, error: str) -> None:
    with pytest.raises(ModelFileError, match=error):
        check_program(config_of(attention, streams=0), "a")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hyper_streams": 9}, "hyper_streams is 9, must be 0 to 8"),
        ({"hyper_streams": 0}, "hyper_iterations is 5, must be 0"),
        ({"hyper_iterations": 0}, "hyper_iterations is 0, must be 1 to 1000"),
        ({"hyper_eps": 2.0}, "hyper_eps is 2, must be 0 to 1"),
        ({"residual_scale": 0.5}, "1 is needed beside hyper_streams"),
        ({"layers": (Layer(SLIDING, Gated(32)),)}, "layer 0 must have attention to shared rows"),
        (
            {"layers": (Layer(SLIDING, replace(EXPERTS, looks_up=True)),)},
            "looks_up is 1, must be 0",
        ),
        ({"layers": (Layer(SLIDING, replace(EXPERTS, limit=0.0)),)}, "limit is 0, must be 0.001"),
    ],
)
def test_what_cannot_be_mixed_is_explained(changes: dict[str, object], error: str) -> None:
    config = config_of(SLIDING)
    check_program(config, "a")
    with pytest.raises(ModelFileError, match=error):
        check_program(replace(config, **changes), "a")
