"""Engines of tiny models that keep a state, as ``lanewise serve`` makes them, and what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.engine import Engine
from lanewise.host import GIB, MIB, MemoryLimit
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.runtime import BLOCK_TOKENS
from lanewise.server import make_engine as making
from lanewise.server import opening
from lanewise.server.draft import open_draft
from lanewise.settings import Settings
from toy_server import outputs_of

LIMIT = MemoryLimit(GIB, "test", dedicated=True)
CONTEXT = {"max_position_embeddings": 512}
SYSTEM = list(b"what many have in common, and is longer than a few blocks of the cache are; " * 2)
# Of a model that may write three letters only many guesses come true, and many do not.
ABC = (97, 98, 99)


@contextmanager
def running(path: str, **changes: Any) -> Iterator[Engine]:
    """An engine of a model, perhaps with something that drafts."""
    settings = Settings(model=path, kv_memory=16 * MIB, max_seqs=4, max_step_tokens=64)
    settings = replace(settings, served_model_name=("toy",), **changes)
    model, text = opening.open_model(settings, 2, LIMIT)
    draft = open_draft(settings, text.tokenizer, 2, None)
    small = read_draft(settings.draft if settings.speculation else None).model
    assert (draft is None) == (small is None)
    with model:
        engine = making.make_engine(settings, model, draft, text.tokenizer, 2, LIMIT, None)
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()
            if draft is not None:
                draft.model.close()


def asked_for_letters() -> list[GenerationRequest]:
    """Prompts with a common beginning, greedy and seeded."""
    params = SamplingParams(seed=3, max_tokens=70, logprobs=2, allowed_token_ids=ABC)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "seed": 9},
    ]
    return [
        GenerationRequest([*SYSTEM[: 40 * i + 30], *b"abcab" * i], replace(params, **kinds[i % 3]))
        for i in range(4)
    ]


def next_turn(answer: Sequence[Any]) -> GenerationRequest:
    """What goes on behind the answer to the first of them."""
    params = SamplingParams(seed=1, max_tokens=30, allowed_token_ids=ABC)
    tokens = [one.token for one in answer]
    return GenerationRequest([*asked_for_letters()[0].prompt, *tokens, *b"abc"], params)


async def together(engine: Engine, requests: list[GenerationRequest]) -> list[Any]:
    """What is answered to requests that come at once."""
    return await asyncio.gather(*[outputs_of(engine, one) for one in requests])


def sampled(outputs: Sequence[Sequence[Any]]) -> list[Any]:
    """The tokens of the one answer, with their log-probabilities."""
    return [one.sampled for one in outputs[0]]


def alone(path: str) -> list[Any]:
    """What is answered without speculation, one after the other."""
    with running(path, speculation=False, prefix_cache=False) as engine:
        return [sampled(asyncio.run(outputs_of(engine, one))) for one in asked_for_letters()]


def leave_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines plan so few that sequences give way to each other."""
    plan = making.plan_cache
    small = {"blocks": 14, "max_model_len": 13 * BLOCK_TOKENS, "max_seqs": 8}

    def planned(*given: Any) -> making.CachePlan:
        made = replace(plan(*given), **small)
        return made if made.n_snapshots is None else replace(made, n_snapshots=6)

    monkeypatch.setattr(making, "plan_cache", planned)
