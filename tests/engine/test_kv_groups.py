"""Layers of different windows: each group of them has blocks of its own."""

import asyncio

import pytest

from lanewise.engine.base.block_pool import NO_BLOCK
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import State
from lanewise.engine.base.stream import TokenOutput
from scheduling import run, run_to_end, scheduler, sequence
from toy_server import metric, outputs_of

NEVER = float("inf")


def request(prompt: str, **params) -> GenerationRequest:
    return GenerationRequest(list(prompt.encode()), SamplingParams(**params))


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [output.sampled.token for output in outputs if output.sampled]


def test_layers_that_see_all_need_blocks_for_the_whole_context_beside_those_of_a_window():
    config = {"max_model_len": 1000, "vocab_size": 10, "max_step_tokens": 64}
    assert EngineConfig(n_blocks=32 + 7, windows=(64, None), **config).max_model_len == 1000
    with pytest.raises(ValueError, match="max_model_len is 1000; the KV cache holds 992 tokens"):
        EngineConfig(n_blocks=31 + 7, windows=(64, None), **config)


@pytest.mark.parametrize("max_draft", [0, 6])
@pytest.mark.parametrize("windows", [(None, 50), (50, None, 70), (9, None, None)])
def test_groups_of_layers_with_windows_of_their_own_change_no_answer(start, max_draft, windows):
    changes = {"max_model_len": 500, "windows": windows, "max_draft": max_draft}
    beginnings = ["x" * 150, "x" * 150 + "y" * 40, "z" * 70]
    requests = [request(beginnings[i % 3] + "w" * i, max_tokens=120, seed=i) for i in range(9)]
    roomy, _ = start(n_blocks=600, prefix_cache=False, min_ahead_s=NEVER, **changes)
    alone = [tokens(asyncio.run(outputs_of(roomy, one))[0]) for one in requests]
    # So few blocks that sequences give way, and what is found of a text is gone in some groups.
    needed = EngineConfig(
        n_blocks=600, vocab_size=10, max_step_tokens=9, max_step_logits=8, max_seqs=8, **changes
    )
    n_blocks = needed.kv_windows.most_blocks(500) + 5
    crowded, runner = start(
        n_blocks=n_blocks, max_step_tokens=9, max_step_logits=8, max_queued_requests=9, **changes
    )

    async def together() -> list[list[list[TokenOutput]]]:
        return await asyncio.gather(*[outputs_of(crowded, one) for one in requests])

    for _ in range(2):
        crowd = asyncio.run(together())
        assert [tokens(outputs[0]) for outputs in crowd] == alone
        assert metric(crowded, "lanewise_kv_blocks_used") == 0
    assert metric(crowded, "vllm:prefix_cache_hits_total") > 0
    assert metric(crowded, "vllm:num_preemptions_total") > 0
    assert max_draft or runner.n_begun > 20


def held(one) -> list[int]:
    return [len(table.blocks) - table.n_dropped for table in one.tables]


def test_layers_with_a_window_hold_it_and_one_block_however_long_the_text():
    s = scheduler(n_blocks=1000, max_step_tokens=64, windows=(None, 128))
    one = sequence(3000, max_tokens=200)
    s.add(one)
    while one.n_cached < 3000:
        run(s)
    while len(one.tokens) < 3190:
        run(s)
        full, windowed = held(one)
        assert full == -(-one.n_cached // 32)
        assert windowed <= 128 // 32 + 1
    assert one.tables[1].blocks[:90] == [NO_BLOCK] * 90


def test_a_text_is_found_as_far_as_all_groups_have_it():
    s = scheduler(n_blocks=200, max_step_tokens=64, windows=(None, 64))
    first = sequence(320, 1, text=1)
    run_to_end(s, first)
    pool = s._pool
    # Without block 8 of the layers with a window, the text can go on behind block 7 and no later.
    pool.forget(pool.find(bytes((1,)) + first.block_key(8)))
    again = sequence(320, 1, text=1)
    s.add(again)
    s.schedule()
    assert again.n_reused == 8 * 32
    assert held(again)[1] >= 2
    # Without block 3 of those that see all, behind block 2: of which the others have what they see.
    s.finish(again)
    pool.forget(pool.find(first.block_key(3)))
    third = sequence(320, 1, text=1)
    s.add(third)
    s.schedule()
    assert third.n_reused == 3 * 32


def test_where_texts_part_each_group_copies_a_block_of_its_own():
    s = scheduler(max_step_tokens=200, windows=(None, 40))
    first, parting = sequence(70, 8, text=1), sequence(70, 1, text=1)
    parting.tokens[45:] = sequence(25).tokens
    s.add(first)
    run(s)
    s.add(parting)
    s.schedule()
    assert parting.n_reused == 45
    pairs = zip(first.tables, parting.tables, strict=True)
    assert s.blocks.take_copies() == [(a.blocks[1], b.blocks[1]) for a, b in pairs]


def test_all_blocks_come_back():
    s = scheduler(n_blocks=60, max_step_tokens=64, windows=(None, 33, 64))
    several = [sequence(100, 200), sequence(300, 20), sequence(5, 90)]
    for one in several:
        s.add(one)
    while any(one.state is not State.FINISHED for one in several):
        run(s)
    assert (s._pool.n_used, s._pool.n_free) == (0, 60)
