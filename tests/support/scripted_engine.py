"""An engine whose draws are told what to say, whatever runs its steps.

Everything else is as it is: requests, templates, grammars and their masks, steps, parsers, answers.
Before a draw the script's token is made the likeliest by far, so that only a mask keeps it back.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.stream import RequestStream
from lanewise.engine.engine import Engine
from lanewise.runtime import Batch, Draw, Finished, Sampled
from lanewise.runtime.sampling import Sampling
from lanewise.text.tokenizer import Tokenizer
from scripted_forms import Said, Script, end_of, written

SURE = 1e6  # added to the logit of what is to be drawn


@dataclass
class Lines:
    """What one sequence is to say."""

    n_prompt: int
    tokens: list[int]
    end: int
    sure: list[Sampling] = field(default_factory=list)  # a step may still read them

    def token(self, position: int) -> int | None:
        """What comes at a position of the text; None within the prompt."""
        if position < self.n_prompt:
            return None
        later = position - self.n_prompt - len(self.tokens)
        return self.tokens[later] if later < 0 else self.end


class Told:
    """Stands before a runner in the order of its bases, and tells its draws what to say."""

    lines: dict[int, Lines]  # by the seed of a request
    refused: Callable[[str], None]

    def step_and_draw(self, batch: Batch, draws: Sequence[Draw]) -> list[Sampled]:
        """Draw what is to be said."""
        told = list(map(self._told, draws))
        drawn: list[Sampled] = super().step_and_draw(batch, told)  # type: ignore[misc]
        for draw, one in zip(draws, drawn, strict=True):
            self._compare(draw, one)
        return drawn

    def start(self, batch: Batch, draws: Sequence[Draw]) -> None:
        """The same of a step that is begun ahead."""
        super().start(batch, list(map(self._told, draws)))  # type: ignore[misc]
        self.__dict__.setdefault("_ahead", []).append(list(draws))

    def finish(self) -> Finished:
        """What a step has drawn that was begun ahead."""
        draws = self.__dict__["_ahead"].pop(0)
        finished: Finished = super().finish()  # type: ignore[misc]
        for draw, one in zip(draws, finished.drawn, strict=True):
            self._compare(draw, one)
        return finished

    def _wanted(self, draw: Draw) -> int | None:
        lines = self.lines.get(draw.sampling.seed)
        return None if lines is None or draw.forced_token >= 0 else lines.token(draw.position)

    def _told(self, draw: Draw) -> Draw:
        wanted = self._wanted(draw)
        if wanted is None:
            return draw
        ids, values = np.array([wanted], np.uint32), np.array([SURE], np.float32)
        sure = replace(draw.sampling, temperature=0.0, bias_ids=ids, bias_values=values)
        self.lines[draw.sampling.seed].sure.append(sure)
        return draw._replace(sampling=sure)

    def _compare(self, draw: Draw, one: Sampled) -> None:
        wanted = self._wanted(draw)
        if wanted not in (None, one.token):
            self.refused(f"at {draw.position} {one.token} in place of {wanted}")


class Director:
    """Gives each request of an engine its lines."""

    def __init__(
        self,
        script: Callable[[], Script | None],
        tokenizer: Tokenizer,
        template: str,
        runner: Told | type[Told],
    ) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._template = template
        self._lines = runner.lines
        self._seeds = itertools.count(1)
        self.prompts: list[str] = []
        self.said: list[Said] = []
        self._meant: list[Said] = []  # some is said otherwise the second time

    def direct(self, engine: Engine) -> Engine:
        """The engine, whose sequences say what the script has."""
        submit = engine.submit

        @asynccontextmanager
        async def told(
            requests: Sequence[GenerationRequest], **options: Any
        ) -> AsyncIterator[RequestStream]:
            async with submit(list(map(self._told, requests)), **options) as stream:
                yield stream

        engine.submit = told  # type: ignore[method-assign]
        return engine

    def _told(self, request: GenerationRequest) -> GenerationRequest:
        script = self._script()
        if script is None:
            return request  # the server's own, while it begins
        prompt = self._tokenizer.decode(list(request.prompt), skip_special=False)
        self.prompts.append(prompt)
        said = self._this_time(script.answer_to(prompt), has_tools=request.grammar is not None)
        self.said.append(said)
        end = end_of(said, self._template)
        seed = next(self._seeds)
        self._lines[seed] = Lines(
            len(request.prompt),
            self._ids(written(said, self._template, prompt)),
            self._ids(end)[0] if end else min(self._tokenizer.eos_ids),
        )
        params = replace(request.params, seed=seed)
        if said.cut is not None:
            params = replace(params, max_tokens=min(said.cut, params.max_tokens))
        return replace(request, params=params)

    def _this_time(self, said: Said, *, has_tools: bool) -> Said:
        """Cut the first time, whole the next; calls made once are then no more."""
        if said.calls and not has_tools:
            return said.without_calls
        n_before = self._meant.count(said)
        self._meant.append(said)
        n_calls = n_before - (said.cut is not None)
        calls = () if said.is_once and n_calls > 0 else said.calls
        return replace(said, cut=said.cut if n_before == 0 else None, calls=calls)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_bos=False, parse_special=True))
