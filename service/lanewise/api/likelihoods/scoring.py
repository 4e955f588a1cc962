"""Runs given continuations of prompts, and says how likely the model finds each of them.

Nothing is drawn. What continuations have before them in common is computed once: the first of each
prompt leaves the keys and values of the prompt in the prefix cache, and the others start behind
them, together in one step. They come after it, so that they find also the block that it has begun.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from lanewise.api.errors import ClientGoneError
from lanewise.api.generation.ask import Ask, Prompts
from lanewise.api.generation.body import find_adapter
from lanewise.api.generation.call import Call
from lanewise.api.generation.delivery import generating
from lanewise.api.generation.events import Usage
from lanewise.api.generation.measuring import check_length
from lanewise.api.observing.record import Record
from lanewise.engine.base.request import GenerationRequest, SamplingParams

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
    which: int  # of the prompts
    is_first: bool  # of its continuations
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
    scores = Scores([[] for _ in asked], usage)
    at_once = call.state.generator.config.max_seqs
    for begin in range(0, len(asked), at_once):
        some = range(begin, min(begin + at_once, len(asked)))
        for parts in (
            _parts(call, asked, some, slice(0, 1), place),
            _parts(call, asked, some, slice(1, None), place),
        ):
            while now := list(islice(parts, at_once)):
                n_bytes = ID_BYTES * sum(len(part.request.prompt) for part in now)
                with caller.hold.passing(n_bytes):
                    await _run(call, now, scores)
    return scores


def _parts(
    call: Call[Any], asked: Sequence[Continued], some: Iterable[int], of: slice, place: Place
) -> Iterator[_Part]:
    """Sequences of some of the prompts, for a part of the continuations of each."""
    adapter = find_adapter(place.model, call.state)
    salt = f"{call.state.tenant_of(call.caller)}\n{place.cache_salt or ''}"
    for which in some:
        one = asked[which]
        params = SamplingParams(seed=0, max_tokens=0, prompt_logprobs=0, score_from=len(one.prompt))
        for ids in one.continuations[of]:
            request = GenerationRequest(
                [*one.prompt, *ids],
                params,
                cache_salt=salt,
                priority=place.priority,
                client=call.caller.number,
                adapter=adapter,
                max_draft=0,
            )
            yield _Part(which, of.start == 0, request)


async def _run(call: Call[Any], parts: Sequence[_Part], scores: Scores) -> None:
    """Run some sequences, and add what comes of them to the scores, in their order."""
    usage = scores.usage
    got = [Likelihood(())] * len(parts)
    async with generating(call, [part.request for part in parts], call.receive) as stream:
        usage.times.moments = usage.times.moments or stream.moments
        async for outputs in stream:
            usage.times.tick()
            for output in outputs:
                part = parts[output.index]
                got[output.index] = Likelihood([one.logprob for one in output.prompt_scores])
                if part.is_first:
                    most = part.request.params.score_from
                    usage.cached_tokens += min(output.cached_tokens, most)
    if stream.cancelled:
        raise ClientGoneError("the client has left")
    for part, one in zip(parts, got, strict=True):
        scores.found[part.which].append(one)


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
