"""The runtime with the real library: small random models of every storage type."""

import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from lanewise.commands.selftest import BLOCK_MAKERS, CONFIG, hash_of_logits, random_checkpoint
from lanewise.loading.base.formats import TensorType
from lanewise.runtime import (
    Batch,
    Draw,
    Model,
    NativeError,
    Sampling,
    Session,
    StepRefusedError,
    best_isa,
    check_isa,
    numerics_version,
    usable_levels,
)

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

ISA = os.environ.get("LANEWISE_ISA")

GOLDEN_DRAWS = [
    [198, 149, 174, 411, 138, 6, 291, 389, 405, 158, 1, 111],
    [404, 496, 465, 132, 32, 404, 96, 492, 189, 314, 472, 95],
    [162, 394, 23, 113, 345, 44, 153, 159, 462, 225, 336, 251],
]


@pytest.fixture
def model():
    with Model.load(random_checkpoint(TensorType.F32), isa=ISA) as model:
        yield model


@pytest.fixture
def session(model):
    with Session(model, threads=1, blocks=8, max_batch_tokens=64, max_batch_logits=64) as session:
        yield session


def prompt(tokens, *, table=(0, 1), context=0, logit_rows=None):
    rows = range(len(tokens)) if logit_rows is None else logit_rows
    return Batch(tokens, [0, len(tokens)], [context], [list(table)], list(rows))


def test_level_asked_for_is_the_level_used(model):
    assert model.info.isa == (ISA or best_isa())
    assert model.info.numerics == numerics_version()


def test_level_this_cpu_lacks_is_an_error_that_names_it():
    absent = {"neon", "avx2"} - set(usable_levels())
    for isa in absent:
        with pytest.raises(NativeError, match=isa):
            check_isa(isa)
        with pytest.raises(NativeError, match=isa):
            Model.load(random_checkpoint(TensorType.F32), isa=isa)
    assert absent


@pytest.mark.parametrize("kind", BLOCK_MAKERS)
def test_every_level_and_thread_count_gives_the_same_bits(kind):
    hashes = {hash_of_logits(kind, isa, threads) for isa in usable_levels() for threads in (1, 2)}
    assert len(hashes) == 1


@pytest.mark.parametrize("weights", ["q4_0", "q8_0"])
@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.F16, TensorType.BF16])
def test_float_model_is_quantized_while_it_is_loaded(kind, weights):
    with Model.load(random_checkpoint(kind), isa=ISA) as plain:
        plain_bytes = plain.info.packed_bytes
        with Session(plain, threads=1, blocks=1, max_batch_tokens=8, max_batch_logits=8) as session:
            expected = session.step(prompt(list(range(8)), table=[0])).copy()
    with Model.load(random_checkpoint(kind), weights=weights, isa=ISA) as model:
        assert model.weights == weights
        assert model.info.packed_bytes < 0.7 * plain_bytes
        with Session(model, threads=1, blocks=1, max_batch_tokens=8, max_batch_logits=8) as session:
            found = session.step(prompt(list(range(8)), table=[0]))
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < error < {"q8_0": 0.03, "q4_0": 0.4}[weights]


def test_logits_do_not_depend_on_chunks_blocks_or_company(session):
    tokens = [(5 * i + 1) % CONFIG.vocab_size for i in range(40)]
    whole = session.step(prompt(tokens)).copy()
    for start in range(0, 40, 7):
        chunk = tokens[start : start + 7]
        rows = session.step(prompt(chunk, table=(6, 3), context=start))
        assert np.array_equal(rows, whole[start : start + 7])
    together = session.step(
        Batch(
            token_ids=[*tokens[39:], 7, 8, *tokens[:3]],
            query_start=[0, 1, 3, 6],
            context_lens=[39, 0, 0],
            block_tables=[[6, 3], [4, 0], [5, 0]],
            logit_rows=[0, 5],
        )
    )
    assert np.array_equal(together, whole[[39, 2]])


def test_step_without_logits_fills_the_cache(session):
    whole = session.step(prompt([1, 2, 3])).copy()
    assert session.step(prompt([1, 2], logit_rows=[])).shape == (0, CONFIG.vocab_size)
    assert np.array_equal(session.step(prompt([3], context=2)), whole[2:])


@pytest.mark.parametrize(
    "batch",
    [
        prompt([CONFIG.vocab_size]),
        prompt([1], table=[8]),
        prompt([1], context=64),
        prompt([1, 2], logit_rows=[2]),
        Batch([1, 2], [0, 2, 1, 2], [0, 0, 0], [[0], [1], [2]], [0]),
    ],
)
def test_values_out_of_range_are_errors_and_the_session_goes_on(session, batch):
    before = session.step(prompt([1, 2])).copy()
    with pytest.raises(NativeError) as error:
        session.step(batch)
    assert error.value.status == 1
    assert str(error.value)
    assert np.array_equal(session.step(prompt([1, 2])), before)


def test_errors_are_those_of_the_thread_that_failed(session):
    messages = {}

    def fail(isa):
        try:
            for _ in range(200):
                check_isa(isa)
        except NativeError as error:
            messages[isa] = str(error)

    names = ["first-bad-name", "second-bad-name"]
    threads = [threading.Thread(target=fail, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(name in messages[name] for name in names)


def test_broken_tensor_is_named():
    checkpoint = random_checkpoint(TensorType.Q4_0)
    tensor = checkpoint.tensors[3]
    object.__setattr__(tensor, "stored", tensor.data[:-1])
    with pytest.raises(NativeError, match="tensor attn_q: "):
        Model.load(checkpoint, isa=ISA)


def test_missing_tensor_is_an_error():
    checkpoint = random_checkpoint(TensorType.F32)
    del checkpoint.tensors[4]
    with pytest.raises(NativeError):
        Model.load(checkpoint, isa=ISA)


def test_greedy_takes_the_largest_logit_and_reports_log_probabilities(session):
    logits = session.step(prompt([1, 2, 3])).copy()
    greedy = Draw(Sampling(temperature=0.0, want_logprob=True, n_top_logprobs=3))
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    result = session.step_and_draw(prompt([1, 2, 3]), [greedy] * 3)
    for row, drawn in zip(expected, result, strict=True):
        order = np.argsort(-row)
        assert drawn.token == order[0]
        assert [token for token, _ in drawn.top] == order[:3].tolist()
        assert drawn.logprob == pytest.approx(row[drawn.token], abs=1e-4)
        assert [value for _, value in drawn.top] == pytest.approx(row[order[:3]], abs=1e-4)


def test_log_probabilities_of_given_tokens_are_those_of_the_tokens_drawn(session):
    wanted = np.array([7, 3, 7, 0], np.uint32)
    given = Sampling(temperature=0.0, want_logprob=True, n_top_logprobs=4, top_ids=wanted)
    result = session.step_and_draw(prompt([1, 2, 3]), [Draw(given)] * 3)
    for token in (7, 3, 0):
        forced = Draw(Sampling(want_logprob=True), forced_token=token)
        alone = session.step_and_draw(prompt([1, 2, 3]), [forced] * 3)
        for one, other in zip(result, alone, strict=True):
            assert dict(one.top)[token] == other.logprob
    assert [token for token, _ in result[0].top] == wanted.tolist()
    wrong = Sampling(n_top_logprobs=2, top_ids=wanted)
    with pytest.raises(StepRefusedError, match="top_ids has 4 entries of 2"):
        session.step_and_draw(prompt([1, 2, 3]), [Draw(wrong)] * 3)


def draw_one(session, *args, **kwargs) -> int:
    """What one draw after the token 1 gives."""
    return session.step_and_draw(prompt([1]), [Draw(*args, **kwargs)])[0].token


def test_draw_depends_on_seed_choice_and_position_alone(session):
    rows = [
        Draw(Sampling(seed=seed, choice=choice), position)
        for seed in (1, 2)
        for choice in (0, 1)
        for position in (5, 6)
    ]
    alone = [draw_one(session, *row) for row in rows]
    n = len(rows)
    same = Batch([1] * n, range(n + 1), [0] * n, [[i] for i in range(n)], range(n))
    assert [drawn.token for drawn in session.step_and_draw(same, rows)] == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_of_a_seed_stay_what_they_were(model, threads):
    # Recorded with ABI 2, where a call of its own drew them: whoever kept a seed keeps the answer.
    settings = [
        Sampling(seed=7, temperature=0.8),
        Sampling(seed=7, temperature=1.2, top_k=40, top_p=0.9, choice=1),
        Sampling(seed=2**63, min_p=0.02, repetition_penalty=1.3, frequency_penalty=0.2),
    ]
    n = len(settings)
    tokens = [[1, 2, 3] for _ in settings]
    tables = [[i, n + i] for i in range(n)]
    with Session(model, threads=threads, blocks=8, max_batch_tokens=9, max_batch_logits=3) as one:
        for position in range(3, 15):
            count = 1 if position > 3 else 3
            draws = [
                Draw(row, position, 3, np.array(seen, np.uint32))
                for row, seen in zip(settings, tokens, strict=True)
            ]
            step = Batch(
                token_ids=[token for seen in tokens for token in seen[-count:]],
                query_start=[i * count for i in range(n + 1)],
                context_lens=[position - count] * n,
                block_tables=tables,
                logit_rows=[(i + 1) * count - 1 for i in range(n)],
            )
            for seen, drawn in zip(tokens, one.step_and_draw(step, draws), strict=True):
                seen.append(drawn.token)
    assert [seen[3:] for seen in tokens] == GOLDEN_DRAWS


def test_bias_mask_and_forced_token_decide_what_is_drawn(session):
    one_bit = np.zeros(CONFIG.vocab_size // 32, np.uint32)
    one_bit[2] = 1 << 5
    ids, values = np.array([17], np.uint32), np.array([1e4], np.float32)
    assert draw_one(session, Sampling(mask=one_bit)) == 69
    assert draw_one(session, Sampling(bias_ids=ids, bias_values=values)) == 17
    assert draw_one(session, Sampling(), forced_token=33) == 33


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("profiled", [False, True])
def test_held_draws_wait_for_the_last_release_and_read_the_mask_of_then(model, threads, profiled):
    mask = np.zeros(CONFIG.vocab_size // 32, np.uint32)
    masked, free = Draw(Sampling(mask=mask)), Draw(Sampling(temperature=0.0))
    same = Batch([1] * 4, range(5), [0] * 4, [[i] for i in range(4)], range(4))
    with Session(model, threads=threads, blocks=8, max_batch_tokens=4, max_batch_logits=4) as one:
        if profiled:
            one.start_profile()
        for token in (69, 33):
            mask[:] = 0
            one.hold_draws()
            one.hold_draws()
            drawn: list[int] = []

            def step(draws, into):
                into += [each.token for each in one.step_and_draw(same, draws)]

            thread = threading.Thread(target=step, args=([masked, free, masked, free], drawn))
            thread.start()
            one.release_draws()
            thread.join(0.05)
            assert thread.is_alive(), "draws did not wait for both holds"
            mask[token // 32] = 1 << token % 32
            one.release_draws()
            thread.join()
            assert drawn[0] == drawn[2] == token
            assert drawn[1] == drawn[3]


def test_time_in_which_only_held_draws_were_to_be_done_is_counted(session):
    for delay_s in (0.01, 0.1, 1.0, 10.0):  # on a busy machine steps come late to their draws
        session.hold_draws()
        threading.Timer(delay_s, session.release_draws).start()
        draw_one(session, Sampling())
        if session.counters().held_seconds:
            break
    assert 0 < session.counters().held_seconds < session.counters().native_seconds


def test_released_draws_and_steps_that_do_not_draw_wait_for_nothing(session):
    session.hold_draws()
    session.release_draws()
    token = draw_one(session, Sampling(temperature=0.0))
    session.hold_draws()
    assert session.step(prompt([1]))[0].argmax() == token
    with pytest.raises(NativeError, match="temperature"):
        draw_one(session, Sampling(temperature=-1.0))
    session.release_draws()
    assert draw_one(session, Sampling(temperature=0.0)) == token
    assert session.counters().held_seconds == 0
    with pytest.raises(NativeError, match="nothing holds the draws"):
        session.release_draws()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (Draw(Sampling(temperature=-1.0)), "draw 0: temperature -1, must be 0 to 1e6"),
        (Draw(Sampling(top_p=0.0)), "draw 0: top_p 0, must be above 0"),
        (Draw(Sampling(), forced_token=10**6), "draw 0: forced_token 1000000, the vocabulary"),
        (
            Draw(Sampling(), history=np.array([10**6], np.uint32)),
            "draw 0: history token 1000000, the vocabulary",
        ),
    ],
)
def test_draws_out_of_range_are_errors_and_the_session_goes_on(session, draw, message):
    before = session.step(prompt([1, 2])).copy()
    with pytest.raises(NativeError, match=message):
        session.step_and_draw(prompt([1]), [draw])
    assert np.array_equal(session.step(prompt([1, 2])), before)


@pytest.mark.parametrize("kv_type", ["f16", "f32", "int8", "k8v4", "q4"])
def test_a_copied_block_is_read_as_the_one_it_was_copied_from(model, kv_type):
    sizes = {"blocks": 8, "max_batch_tokens": 64, "max_batch_logits": 64}
    with Session(model, threads=1, kv_type=kv_type, **sizes) as session:
        tokens = list(range(1, 45))
        whole = session.step(prompt(tokens))[-4:].copy()
        # Tokens 32 to 43, of which 8 are used; then others are written over them.
        session.step(replace(prompt([9] * 12, context=32), block_copies=[(1, 5)]))
        again = session.step(prompt(tokens[40:], table=(0, 5), context=40))
        assert np.array_equal(again, whole)
        with pytest.raises(NativeError, match=r"block_copies\[1\] has block 8, the cache has 8"):
            session.step(replace(prompt([1]), block_copies=[(0, 1), (0, 8)]))


def test_counters_tell_one_row_from_many(session):
    session.step(prompt([1, 2, 3], logit_rows=[]))
    many = session.counters()
    session.step(prompt([4], context=3))
    one = session.counters()
    assert (many.steps, many.tokens, one.steps, one.tokens) == (1, 3, 2, 4)
    assert many.gemm_calls > 0
    assert many.gemv_calls == 0
    assert one.gemm_calls == many.gemm_calls
    assert one.gemv_calls == one.gemv_rows > 0


def test_native_seconds_are_part_of_the_wall_time_of_steps(session):
    start = time.perf_counter()
    session.step(prompt([1, 2, 3]))
    after_step = session.counters().native_seconds
    session.step_and_draw(prompt([1]), [Draw(Sampling())])
    after_draw = session.counters().native_seconds
    assert 0 < after_step < after_draw < time.perf_counter() - start


def test_cache_bytes_follow_the_type(model):
    attention = CONFIG.layers[0].attention
    vectors = 2 * CONFIG.n_layers * attention.n_kv_heads * 32
    assert model.kv_layout("f16").block_bytes == 2 * vectors * attention.head_dim
    assert model.kv_layout("f32").block_bytes == 4 * vectors * attention.head_dim
    assert model.kv_layout("int8").block_bytes == vectors * (attention.head_dim + 4)  # a scale each
    assert attention.head_dim % 32 == 0
    assert model.kv_layout("q4").block_bytes == vectors * (attention.head_dim // 2 + 4)
    assert model.kv_layout("k8v4").block_bytes == vectors * (attention.head_dim * 3 // 4 + 4)


def steps_in(model, kv_type, chunk, threads):
    """Logits of a prompt, run in chunks beside another sequence, with a cache of one type."""
    tokens = [(5 * i + 1) % CONFIG.vocab_size for i in range(45)]
    rows = []
    with Session(
        model, threads=threads, blocks=4, max_batch_tokens=64, max_batch_logits=64, kv_type=kv_type
    ) as session:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            n = len(part)
            step = Batch([*part, 7], [0, n, n + 1], [start, 0], [[3, 1], [2, 0]], range(n))
            rows.append(session.step(step).copy())
    return np.concatenate(rows)


@pytest.mark.parametrize(("kv_type", "most"), [("int8", 0.02), ("k8v4", 0.2), ("q4", 0.3)])
@pytest.mark.parametrize("kind", [TensorType.Q4_0, TensorType.F32])
def test_cache_of_codes_is_close_to_f16_and_no_bit_depends_on_how_it_is_used(kind, kv_type, most):
    with Model.load(random_checkpoint(kind), isa="scalar") as model:
        expected = steps_in(model, kv_type, 45, 1)
        exact = steps_in(model, "f32", 45, 1)
    error = np.abs(expected - exact).max() / np.abs(exact).max()
    assert 0 < error < most
    for isa in usable_levels():
        with Model.load(random_checkpoint(kind), isa=isa) as model:
            for chunk, threads in ((45, 2), (7, 1), (32, 2)):
                assert np.array_equal(steps_in(model, kv_type, chunk, threads), expected)
