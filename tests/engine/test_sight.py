"""Pictures in the engine: made between steps, kept, given up, and never taken for one another."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from lanewise.engine.base.block_pool import first_key, next_key
from lanewise.engine.base.picture import Picture, PictureRules, Span
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Budget, Step, Turn
from lanewise.engine.guessing.draft_model import DraftModel
from lanewise.engine.guessing.prediction_head import PredictionHead
from lanewise.engine.scheduling.sight import LEAST_S, MOST_S
from lanewise.engine.steps.picture_arrays import positions_of, sees_of
from lanewise.runtime import BLOCK_TOKENS, Batch, Sampled
from tower_models import positions_with
from toy_server import CONFIG, make_engine, metric, outputs_of
from toy_tower import SIDE, ToyTower

PARAMS = SamplingParams(seed=1, max_tokens=6, temperature=0.0)


def picture(seed: int, rows: int = 2, columns: int = 3) -> Picture:
    shape = rows * SIDE, columns * SIDE, 3
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8).tobytes()
    digest = seed.to_bytes(32, "big")
    return Picture(digest, columns * SIDE, rows * SIDE, rows * columns, pixels)


def request(*pictures: Picture, salt: str = "", n_before: int = 40) -> GenerationRequest:
    ids = [i % 90 for i in range(n_before)]
    spans = []
    for one in pictures:
        spans.append(Span(len(ids), one, 0, one.n_tokens))
        ids += [99] * one.n_tokens + [1, 2]
    return GenerationRequest(ids, PARAMS, pictures=spans, cache_salt=salt, max_draft=0)


class Running:
    """An engine with a toy tower, until the block ends."""

    def __init__(self, image_bytes: int = 1 << 20, n_slices: int = 3, **config: object) -> None:
        self.tower = ToyTower(n_slices)
        self.engine, self.runner = make_engine(
            replace(CONFIG, **config), tower=self.tower, image_bytes=image_bytes
        )

    def __enter__(self) -> "Running":
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()
        assert self.tower.closed

    def tokens(self, *requests: GenerationRequest) -> list[list[int]]:
        outputs = asyncio.run(outputs_of(self.engine, *requests))
        return [[one.sampled.token for one in sequence] for sequence in outputs]


def test_equal_pictures_are_seen_once_and_others_give_other_answers():
    one, other = picture(1), picture(2)
    with Running() as running:
        first = running.tokens(request(one))
        assert metric(running.engine, "lanewise_image_seconds_total") > 0
        assert running.tokens(request(one)) == first
        assert running.tower.n_done == 1  # all of it was in the prefix cache
        assert running.tokens(request(other)) != first
        # Behind another text the rows are still there.
        behind = running.tokens(request(one, n_before=41))
        assert running.tower.n_done == 2
        assert metric(running.engine, "lanewise_image_views_total", result="cached") == 1
        both = running.tokens(request(one, other), request(other, one))
        assert both[0] != both[1]
        assert running.tower.n_done == 2
        # Another tenant's are another's.
        assert running.tokens(request(one, salt="b")) == first
        assert running.tower.n_done == 3
    with Running(prefix_cache=False, image_bytes=0, max_step_tokens=8, max_seqs=8) as running:
        assert running.tokens(request(one)) == first
        assert running.tokens(request(one)) == first
        assert running.tower.n_done == 2  # nothing is kept
        assert running.tokens(request(one, n_before=41)) == behind
        assert running.tokens(request(one, other), request(other, one)) == both


def test_rows_that_do_not_fit_go_by_age():
    rows = 6 * 2 * 4  # bytes of a picture's
    with Running(prefix_cache=False, image_bytes=2 * rows) as running:
        for seed in (1, 2, 1, 3, 1):
            running.tokens(request(picture(seed)))
        assert running.tower.n_done == 3
        running.tokens(request(picture(2)))
        assert running.tower.n_done == 4


def test_others_go_on_while_a_tower_works_in_slices():
    with Running(n_slices=50) as running:

        async def run() -> None:
            text = replace(request(), params=replace(PARAMS, max_tokens=400))
            async with running.engine.submit([text]) as stream:
                await anext(stream)
                before = len(running.runner.batches)
                seen = asyncio.create_task(outputs_of(running.engine, request(picture(1))))
                await seen
                steps = len(running.runner.batches) - before
                assert steps > 50  # one at least between two slices
                assert all(LEAST_S * 1e9 <= one <= MOST_S * 1e9 for one in running.tower.slices[1:])

        asyncio.run(run())


def test_a_request_that_leaves_or_fails_leaves_the_tower_to_others():
    with Running(n_slices=1 << 30) as running:

        async def leave() -> None:
            async with running.engine.submit([request(picture(1))]):
                await asyncio.to_thread(running.tower.wait_until, lambda: running.tower.slices)

        asyncio.run(leave())
        running.tower.wait_until(lambda: running.tower.n_dropped == 1)
        running.tower.n_slices = 1
        running.tower.error = RuntimeError("not finite")
        with pytest.raises(Exception, match="not finite"):
            running.tokens(request(picture(2)))
        assert len(running.tokens(request(picture(2)))[0]) == 6


def test_keys_tell_pictures_apart():
    def key(*pictures: Picture) -> bytes:
        sequence = Scheduled(request(*pictures, n_before=BLOCK_TOKENS - 4))
        return sequence.block_key(0)

    one, other = picture(1, 4, 8), picture(2, 4, 8)
    assert key(one) == key(picture(1, 4, 8))
    assert key(one) != key(other)
    plain = [i % 90 for i in range(BLOCK_TOKENS - 4)] + [99] * 4
    assert key(one) != next_key(first_key(""), plain)


def turn_of(sequence: Scheduled, first: int, count: int) -> Step:
    sequence.n_cached = first
    return Step([Turn(sequence, count, range(0), ends_in_draw=False)])


def test_positions_count_rows_and_columns_of_pictures():
    shapes = [(2, 3), (1, 5), (4, 1)]
    pictures = [picture(seed, *shape) for seed, shape in enumerate(shapes)]
    asked = request(*pictures, n_before=7)
    n_tokens = len(asked.prompt) + 5
    wanted = positions_with([span.first for span in asked.pictures], shapes, n_tokens)
    for first in range(n_tokens):
        for count in (1, 3, n_tokens):
            count = min(count, n_tokens - first)
            found = positions_of(turn_of(Scheduled(asked), first, count))
            assert found is not None
            assert (found == wanted[:, first : first + count]).all()
    assert positions_of(turn_of(Scheduled(request()), 0, 5)) is None


class Recording:
    """A model whose head says 7."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def step_and_draw(self, batch: Batch, draws: list) -> list[Sampled]:
        self.batches.append(batch)
        return [Sampled(7, 0.0) for _ in draws]


def test_a_head_guesses_behind_the_positions_of_pictures():
    asked, plain = request(picture(1, 4, 5), n_before=7), request()
    config = replace(CONFIG, vocab_size=100, pictures=PictureRules(n_axes=3))
    head = PredictionHead(runner := Recording(), config)
    sequences = [Scheduled(asked), Scheduled(plain)]
    for sequence in sequences:
        sequence.tokens = [*sequence.request.prompt, 1, 2]
    tables = np.zeros((2, 4), np.uint32)
    wanted = [(one, head.reader(one), 2) for one in sequences]
    assert head.guess(wanted, tables) == [[7, 7], [7, 7]]
    n = len(sequences[0].tokens)
    ends = positions_with([7], [(4, 5)], n + 1)[:, -2:]
    for length, batch in enumerate(runner.batches):
        place = len(sequences[1].tokens) - 1 + length
        assert batch.positions.tolist() == [[one, place] for one in ends[:, length].tolist()]
    head.guess(wanted[1:], tables)
    assert runner.batches[-1].positions is None


def test_guesses_change_no_answer_to_pictures():
    """By the text, which has placeholders in it, and none by a draft model, which does not see."""
    asked = [
        replace(request(picture(seed)), params=replace(PARAMS, max_tokens=200), max_draft=None)
        for seed in range(3)
    ]
    with Running() as running:
        wanted = [running.tokens(one)[0] for one in asked]
    with Running(max_draft=6) as running:
        again = [replace(one, expected=tokens) for one, tokens in zip(asked, wanted, strict=True)]
        assert [running.tokens(one)[0] for one in again] == wanted
        assert metric(running.engine, "vllm:spec_decode_num_accepted_tokens_total") > 0
    draft = DraftModel(
        Recording(),
        vocab_size=100,
        usable_ids=range(100),
        context_length=500,
        max_step_tokens=64,
        prefix_cache=False,
        n_blocks=4,
    )
    assert draft.room(Scheduled(asked[0])) == 0
    assert draft.room(Scheduled(request())) > 0


def test_pictures_that_see_ahead_are_in_one_step():
    asked = request(picture(1, 2, 4), n_before=10)
    rows = np.zeros((8, 2), np.float32)

    def counted(first: int, spare: int, most: int = 20) -> int:
        sequence = Scheduled(asked)
        sequence.n_cached, sequence.rows = first, {0: rows}
        budget = Budget(most, 1, whole_pictures=True)
        budget.leave(spare)
        budget.spend_on(sequence)
        return budget.turns[0].count if budget.turns else 0

    assert counted(0, 20) == 20
    assert counted(0, 12) == 18  # all of it, which is more than was to be spent
    assert counted(0, 12, most=17) == 10  # there is no room for all: what is before it
    assert counted(10, 3) == 8
    assert counted(10, 3, most=7) == 0
    assert counted(12, 3) == 6  # the rest of one that is partly cached
    sequence = Scheduled(asked)
    sequence.rows = {0: rows}
    sees = sees_of(turn_of(sequence, 8, 12))
    assert sees is not None
    assert sees.tolist() == [0, 0, *[18] * 8, 0, 0]


def test_rules_of_a_model_reach_its_batches():
    rules = PictureRules(n_axes=3, see_ahead=True)
    with Running(pictures=rules, max_step_tokens=32) as running:
        running.tokens(request(picture(1)))
        first = running.runner.batches[0]
        assert first.positions.shape == (3, len(first.token_ids))
        with_rows = next(batch for batch in running.runner.batches if batch.rows)
        assert with_rows.sees.max() == 46


def test_sequences_that_lose_their_blocks_see_their_pictures_again():
    asked = [
        replace(request(picture(seed), picture(seed % 2)), params=replace(PARAMS, max_tokens=120))
        for seed in range(6)
    ]
    few = {"n_blocks": 14, "max_model_len": 256}
    # The last ones have states, and go on from snapshots.
    for more in ({}, {"prefix_cache": False}, {"n_snapshots": 3}, {"n_snapshots": 0}):
        with Running(**more) as running:
            alone = [running.tokens(one)[0] for one in asked]
        with Running(image_bytes=0, **few | more) as running:

            async def together(running: Running) -> list[list[int]]:
                beside = [outputs_of(running.engine, one) for one in asked]
                return [
                    [one.sampled.token for one in outputs[0]]
                    for outputs in await asyncio.gather(*beside)
                ]

            assert asyncio.run(together(running)) == alone
            assert metric(running.engine, "vllm:num_preemptions_total") > 0
