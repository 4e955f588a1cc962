"""Turns the sequences of a request into jobs: the sampler, grammar and guesser of each."""

import time
from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.drawing.constraint import Constraint
from lanewise.engine.drawing.sampling import Sampler, allowed_mask
from lanewise.engine.guessing.speculation import Speculator
from lanewise.engine.steps.tracking import Job, JobGroup

A_GRAMMAR = 1 << 12  # work of making one matcher, in the unit of ``JobMaker.work``


class JobMaker:
    """Makes jobs on event loops, before the engine's thread has them."""

    def __init__(self, config: EngineConfig, speculator: Speculator | None) -> None:
        self._config = config
        self._speculator = speculator
        self._vocab_mask: NDArray[np.uint32] | None = None
        if config.unused_ids:
            used = set(range(config.vocab_size)).difference(config.unused_ids)
            self._vocab_mask = allowed_mask(config.vocab_size, used)

    @staticmethod
    def work(requests: Sequence[GenerationRequest]) -> int:
        """Roughly how many numbers are copied to make the jobs of these requests."""
        work = 0
        for request in requests:
            params = request.params
            work += len(request.prompt) + 2 * len(params.logit_bias) + len(params.stop_token_ids)
            work += len(request.expected)
            work += A_GRAMMAR if request.grammar is not None else 0
        return work + len(requests[0].params.allowed_token_ids or ()) if requests else 0

    def make(self, requests: Sequence[GenerationRequest]) -> JobGroup:
        """The jobs of one request's sequences; ValueError if one could never be run."""
        if not requests:
            raise ValueError("a request without sequences cannot be run")
        now = time.monotonic()
        group = JobGroup(requests[0].adapter)
        params, mask = None, None  # of the sequence before, usually equal
        n_before = 0
        guessers = self._speculator.guessers(requests) if self._speculator else repeat(None)
        for index, (request, guesser) in enumerate(zip(requests, guessers, strict=False)):
            total = len(request.prompt) + request.params.max_tokens
            if not request.prompt or total > self._config.max_model_len:
                raise ValueError(f"a request of {total} tokens cannot be run")
            sequence = Scheduled(request)
            sequence.group, sequence.n_before = group, n_before
            n_before += sequence.n_prompt
            if request.params is not params:
                params = request.params
                mask = self._mask(params.allowed_token_ids)
            sampler = self._sampler(request, sequence, mask)
            if not sampler.speculates:
                guesser = None
            group.jobs[index] = Job(group, index, sequence, sampler, now, guesser)
        return group

    def _sampler(
        self, request: GenerationRequest, sequence: Scheduled, mask: NDArray[np.uint32] | None
    ) -> Sampler:
        """How its tokens are drawn; what its grammar forces at the beginning is appended."""
        params = request.params
        constraint = None
        if request.grammar is not None:
            constraint = Constraint(request.grammar, params, mask)
            sequence.tokens += constraint.begin(params.max_tokens)
            sequence.is_complete = constraint.finished
        return Sampler(params, request.choice, len(request.prompt), mask, constraint)

    def _mask(self, allowed: Sequence[int] | None) -> NDArray[np.uint32] | None:
        if allowed is None:
            return self._vocab_mask
        mask = allowed_mask(self._config.vocab_size, allowed)
        return mask if self._vocab_mask is None else mask & self._vocab_mask
