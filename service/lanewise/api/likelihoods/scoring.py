"""Runs given continuations of prompts, and says how likely the model finds each of them.

Nothing is written. The logits behind a prompt tell of the first tokens of all its continuations.
A longer continuation has a sequence of its own, which starts behind the keys and values that the
prompt left in the prefix cache. All such sequences run together in one step, after the prompt's, so
that they find the block that it has begun too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from lanewise.api.errors import ClientGoneError
from lanewise.api.generation.ask import Ask, Prompts
from lanewise.api.generation.body import find_adapter
from lanewise.api.generation.call import Call
from lanewise.api.generation.delivery import generating
from lanewise.api.generation.events import Usage
from lanewise.api.generation.measuring import check_length
from lanewise.api.observing.record import Record
from lanewise.api.schemas import MAX_TOP_LOGPROBS
from lanewise.engine.base.request import BACKGROUND, GenerationRequest, SamplingParams
from lanewise.engine.base.stream import TokenOutput
from lanewise.engine.scheduling.admission import RESERVED

ID_BYTES = 24  # of a token in a request and in its sequence
SCORE_BYTES = 200  # of a scored token, until the answer is written


class Continued(NamedTuple):
    """A prompt and what may follow it, as token ids."""

    prompt: Sequence[int]
    continuations: Sequence[Sequence[int]]
    param: str  # what the client calls the prompt


class Likelihood(NamedTuple):
    """The log-probability of each token of a continuation, behind all that is before it."""

    logprobs: Sequence[float]

    @property
    def logprob(self) -> float:
        """Of all of it."""
        return math.fsum(self.logprobs)


class Place(NamedTuple):
    """What is asked, and where it stands among others."""

    operation: str  # what logs call it
    model: str | None = None
    cache_salt: str | None = None
    priority: int = 0


class Scores(NamedTuple):
    """The likelihoods of each prompt's continuations, and what they took."""

    found: list[list[Likelihood]]
    usage: Usage


class _Part(NamedTuple):
    """A sequence, whose last logits tell of some tokens."""

    which: int  # of the prompts
    number: int | None  # of the continuation that it goes through; None: first tokens of all
    is_first: bool  # of its prompt
    request: GenerationRequest


async def likelihoods(call: Call[Any], asked: Sequence[Continued], place: Place) -> Scores:
    """How likely all continuations are, none of which may be empty.

    ApiError if something is too long, or the client goes away.
    """
    caller = call.caller
    for one in asked:
        longest = max(map(len, one.continuations))
        n_tokens = len(one.prompt) and len(one.prompt) + longest
        check_length(n_tokens, 0, call.state.max_model_len, one.param)
    usage = Usage()
    name = place.model or call.state.model_name
    caller.record = Record(place.operation, name, Ask(input=Prompts(items=())), usage)
    n_scored = sum(len(ids) for one in asked for ids in one.continuations)
    usage.prompt_tokens = sum(len(one.prompt) for one in asked) + n_scored
    caller.hold.keep(SCORE_BYTES * n_scored)
    found = [_Found(one) for one in asked]
    engine = call.state.generator
    # As much as a client may always have: no request is refused in its middle.
    at_once = max(1, min(engine.config.max_seqs, int(RESERVED * engine.largest_request)))
    most = int(RESERVED * engine.config.max_queued_tokens)
    for begin in range(0, len(asked), at_once):
        some = range(begin, min(begin + at_once, len(asked)))
        for parts in (_firsts(call, asked, some, place), _others(call, asked, some, place)):
            for now in _bounded(parts, at_once, most):
                n_bytes = ID_BYTES * sum(len(part.request.prompt) for part in now)
                with caller.hold.passing(n_bytes):
                    await _run(call, now, found, usage)
    return Scores([one.likelihoods() for one in found], usage)


def _bounded(parts: Iterable[_Part], count: int, n_tokens: int) -> Iterator[list[_Part]]:
    """The parts in groups of so many, and so many tokens, of which any may have one part."""
    group: list[_Part] = []
    size = 0
    for part in parts:
        size += len(part.request.prompt)
        if group and (len(group) == count or size > n_tokens):
            yield group
            group, size = [], len(part.request.prompt)
        group.append(part)
    if group:
        yield group


class _Found:
    """What is known of one prompt's continuations so far."""

    def __init__(self, asked: Continued) -> None:
        self._asked = asked
        self._firsts: dict[int, float] = {}  # by token
        self._rests: dict[int, list[float]] = {}  # by continuation

    def add(self, part: _Part, output: TokenOutput) -> None:
        """Take what a sequence has told."""
        assert output.sampled is not None
        if part.number is None:
            self._firsts.update(output.sampled.top)
            return
        inner = [one.logprob for one in output.prompt_scores]
        self._rests[part.number] = [*inner, output.sampled.top[0][1]]

    def likelihoods(self) -> list[Likelihood]:
        """Of all continuations, once all is known."""
        every = enumerate(self._asked.continuations)
        return [Likelihood([self._firsts[ids[0]], *self._rests.get(i, ())]) for i, ids in every]


class _Requests:
    """Makes requests of one call."""

    def __init__(self, call: Call[Any], place: Place) -> None:
        self._adapter = find_adapter(place.model, call.state)
        self._salt = f"{call.state.tenant_of(call.caller)}\n{place.cache_salt or ''}"
        self._priority = place.priority + (BACKGROUND if call.caller.is_background else 0)
        self._client = call.caller.number

    def one(
        self, prompt: Sequence[int], wanted: Sequence[int], score_from: int | None
    ) -> GenerationRequest:
        """A prompt, scored from a token on, and tokens that may come behind it."""
        params = SamplingParams(
            seed=0,
            max_tokens=1,
            temperature=0.0,
            logprob_ids=tuple(wanted),
            prompt_logprobs=None if score_from is None else 0,
            score_from=score_from or 1,
        )
        return GenerationRequest(
            prompt,
            params,
            cache_salt=self._salt,
            priority=self._priority,
            client=self._client,
            adapter=self._adapter,
            max_draft=0,
        )


def _firsts(
    call: Call[Any], asked: Sequence[Continued], some: Iterable[int], place: Place
) -> Iterator[_Part]:
    """Of each prompt a sequence that tells of the first tokens of its continuations."""
    requests = _Requests(call, place)
    for which in some:
        prompt, continuations, _ = asked[which]
        wanted = _first_tokens(continuations)[:MAX_TOP_LOGPROBS]
        yield _Part(which, None, is_first=True, request=requests.one(prompt, wanted, None))


def _others(
    call: Call[Any], asked: Sequence[Continued], some: Iterable[int], place: Place
) -> Iterator[_Part]:
    """The sequences that tell of all other tokens."""
    requests = _Requests(call, place)
    for which in some:
        prompt, continuations, _ = asked[which]
        wanted = _first_tokens(continuations)
        for begin in range(MAX_TOP_LOGPROBS, len(wanted), MAX_TOP_LOGPROBS):
            told = wanted[begin : begin + MAX_TOP_LOGPROBS]
            yield _Part(which, None, is_first=False, request=requests.one(prompt, told, None))
        for number, ids in enumerate(continuations):
            if len(ids) > 1:
                request = requests.one([*prompt, *ids[:-1]], ids[-1:], len(prompt) + 1)
                yield _Part(which, number, is_first=False, request=request)


def _first_tokens(continuations: Sequence[Sequence[int]]) -> list[int]:
    return list(dict.fromkeys(ids[0] for ids in continuations))


async def _run(
    call: Call[Any], parts: Sequence[_Part], found: Sequence[_Found], usage: Usage
) -> None:
    """Run some sequences, and add what they tell to what is found."""
    async with generating(call, [part.request for part in parts], call.receive) as stream:
        usage.times.moments = usage.times.moments or stream.moments
        async for outputs in stream:
            usage.times.tick()
            for output in outputs:
                part = parts[output.index]
                found[part.which].add(part, output)
                if part.is_first:
                    usage.cached_tokens += output.cached_tokens
    if stream.cancelled:
        raise ClientGoneError("the client has left")


def shares(found: Sequence[Likelihood]) -> list[float]:
    """The probabilities of continuations of one prompt if it is one of them: their sum is 1."""
    most = max(one.logprob for one in found)
    weights = [math.exp(one.logprob - most) for one in found]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def usage_of(scores: Scores) -> dict[str, Any]:
    """Tokens, in OpenAI's words: each prompt counts once, and so does each continuation."""
    usage = scores.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
