"""Steps that fail at any moment: whoever is answered gets what it would have got alone."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_by_hand import EngineByHand, answer_alone, outputs_of
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.stream import EngineError
from lanewise.runtime import BLOCK_TOKENS

CONFIG = EngineConfig(
    n_blocks=20,
    max_model_len=160,
    vocab_size=1,  # replaced by the tokenizer's
    max_seqs=6,
    max_step_tokens=40,
    max_step_logits=12,
    max_queued_requests=40,
)
TEXTS = ["the sea was calm that morning and nobody had seen the ship " * 3, "another text, " * 9]
FAILURES = st.sampled_from(["refused", "failed", "not begun"])


def request(text: int, length: int, ending: int, max_tokens: int, **params) -> GenerationRequest:
    """The beginning of a text, and then something of its own."""
    prompt = TEXTS[text][:length] + chr(ord("A") + ending) * (1 + ending % 3)
    sampling = SamplingParams(seed=ending, max_tokens=max_tokens, **params)
    return GenerationRequest(list(prompt.encode()), sampling)


@cache
def alone(choice: int, *made: int) -> list[int]:
    return answer_alone(replace(request(*made), choice=choice), CONFIG)


@settings(max_examples=150, deadline=None)
@given(
    asked=st.lists(
        st.tuples(
            st.integers(0, 1),  # which text
            st.integers(1, 90),  # how much of it
            st.integers(0, 7),  # what comes behind it
            st.integers(1, 24),  # max_tokens
            st.integers(0, 25),  # the step it comes before
            st.none() | st.integers(0, 40),  # the step it is given up before
            st.integers(-1, 1),  # priority
            st.integers(0, 2),  # client
            st.integers(1, 3),  # answers
        ),
        min_size=1,
        max_size=10,
    ),
    failures=st.dictionaries(st.integers(0, 40), FAILURES, max_size=8),
    spare_blocks=st.integers(0, 12),
    max_seqs=st.integers(1, 6),
    spare_tokens=st.integers(0, 40),
)
def test_answers_are_those_of_requests_alone_whatever_fails(
    asked, failures, spare_blocks, max_seqs, spare_tokens
):
    config = replace(
        CONFIG,
        n_blocks=CONFIG.max_model_len // BLOCK_TOKENS + spare_blocks,
        max_seqs=max_seqs,
        max_step_tokens=max_seqs + spare_tokens,
        max_step_logits=max_seqs,
    )
    by_hand = EngineByHand(config, dict(failures))
    groups = {}
    for now in range(60):
        for place, (*made, arrival, leaves, priority, client, n) in enumerate(asked):
            if arrival == now:
                one = replace(request(*made), priority=priority, client=client)
                groups[place] = by_hand.submit([replace(one, choice=i) for i in range(n)])
            if leaves == now and place in groups:
                groups[place].stream.cancel()
        by_hand.advance()
    by_hand.run_to_end()
    n_failed = 0
    for place, (*made, _, _, _, _, n) in enumerate(asked):
        stream = groups[place].stream
        if stream.cancelled:
            continue
        if stream._error is not None:
            assert isinstance(stream._error, EngineError)
            n_failed += 1
            continue
        for choice, outputs in zip(range(n), outputs_of(groups[place]), strict=True):
            got = [one.sampled.token for one in outputs if one.sampled]
            assert got == alone(choice, *made)
    # A request fails only where its own step, run by itself, has failed.
    assert n_failed <= by_hand.runner.n_failed
    assert by_hand.engine._pool.n_used == 0
    assert len(by_hand.engine._scheduler.blocks.free_rows) == max_seqs
    assert by_hand.engine._admission.unfinished == 0


@pytest.mark.parametrize("kind", ["refused", "failed"])
def test_a_chain_of_copies_behind_a_failed_step_is_made_once(kind):
    config = replace(CONFIG, n_blocks=12, max_model_len=12 * BLOCK_TOKENS)
    by_hand = EngineByHand(config)

    def asked(text: str, max_tokens: int) -> GenerationRequest:
        return GenerationRequest(list(text.encode()), SamplingParams(seed=1, max_tokens=max_tokens))

    texts = ["a" * 20, "b" * 20, "c" * 20, "d" * 20]
    for text in [*texts, "-" * (7 * BLOCK_TOKENS + 10)]:  # blocks 0 to 3, and all others
        by_hand.submit([asked(text, 1)])
        by_hand.run_to_end()
    first = by_hand.submit([asked("x", 30)])  # in block 0
    by_hand.advance()
    # Copied from block 2 to 1, and then from 3 to 2.
    behind = [asked("c" * 15 + "!", 5), asked("d" * 15 + "?", 5)]
    groups = [by_hand.submit([one]) for one in behind]
    by_hand.runner.failures[by_hand.runner.n_run] = kind
    by_hand.advance()
    assert [job.sequence.tables[0].blocks for group in groups for job in group] == [[1], [2]]
    by_hand.run_to_end()
    assert isinstance(first.stream._error, EngineError)  # it was alone in the step that failed
    for group, one in zip(groups, behind, strict=True):
        got = [output.sampled.token for output in outputs_of(group)[0] if output.sampled]
        assert got == answer_alone(one, CONFIG)
