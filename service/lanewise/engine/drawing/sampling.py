"""How the next token of a sequence is drawn, as its request asked."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.request import SamplingParams
from lanewise.engine.drawing.constraint import Constraint
from lanewise.runtime import Draw, Sampling

TINY_TOP_P = float(np.finfo(np.float32).tiny)


def allowed_mask(vocab_size: int, allowed: Iterable[int]) -> NDArray[np.uint32]:
    """One bit for each token, set for the allowed ones."""
    mask = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
    ids = np.fromiter(allowed, dtype=np.int64)
    np.bitwise_or.at(mask, ids // 32, np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32)))
    return mask


class GrowingArray:
    """A uint32 array that grows at its end; views of it cost nothing."""

    __slots__ = ("_data", "_size")

    def __init__(self, values: Sequence[int] = ()) -> None:
        self._data = np.array(values, dtype=np.uint32)
        self._size = len(self._data)

    def __len__(self) -> int:
        return self._size

    def append(self, value: int) -> None:
        """Add one value; amortised constant time."""
        if self._size == len(self._data):
            self._data = np.concatenate([self._data, np.zeros(max(16, self._size), np.uint32)])
        self._data[self._size] = value
        self._size += 1

    def extend(self, values: Iterable[int]) -> None:
        """Add several values."""
        for value in values:
            self.append(value)

    def truncate(self, size: int) -> None:
        """Drop what is after the first ``size`` values; views stay valid until the next append."""
        self._size = size

    def view(self) -> NDArray[np.uint32]:
        """The values; valid until the next append."""
        return self._data[: self._size]


class Sampler:
    """Makes the draws of one sequence; the parts that never change are made once."""

    def __init__(
        self,
        params: SamplingParams,
        choice: int,
        n_prompt: int,
        mask: NDArray[np.uint32] | None,
        constraint: Constraint | None = None,
    ) -> None:
        self.constraint = constraint
        # False with a grammar: its mask depends on the tokens actually drawn.
        self.speculates = constraint is None
        if constraint is not None:
            mask = constraint.mask
        self._n_prompt = n_prompt
        self._first_late = n_prompt + params.min_tokens
        self._history = GrowingArray() if params.has_penalties else None
        bias = dict(params.logit_bias)
        late = self._late = _sampling(params, choice, bias, mask)
        # Until there are min_tokens tokens, every token that would end the answer is forbidden.
        # With a grammar only its mask decides: the grammar's own end comes first.
        forbidden = bias | dict.fromkeys(params.stop_token_ids, -np.inf)
        has_early = params.min_tokens and constraint is None
        self._early = _sampling(params, choice, forbidden, mask) if has_early else late
        self._score = Sampling(n_top_logprobs=params.prompt_logprobs or 0, want_logprob=True)

    def draw(self, tokens: Sequence[int], n_pending: int = 0) -> Draw:
        """The draw of the token after ``tokens``, which include the prompt.

        The last ``n_pending`` of them are still to be drawn: the library fills them in.
        """
        position = len(tokens)
        sampling = self._early if position < self._first_late else self._late
        if self.constraint is None and self._history is None:
            return Draw(sampling, position)
        forced = -1
        if self.constraint is not None:
            forced = self.constraint.forced_token
            self.constraint.may_stop = position >= self._first_late
        if self._history is None:
            return Draw(sampling, position, forced_token=forced)
        self._history.extend(tokens[len(self._history) : position - n_pending])
        return Draw(sampling, position, self._n_prompt, self._history.view(), forced)

    def draws_with_draft(self, tokens: Sequence[int], draft: Sequence[int]) -> list[Draw]:
        """The draw after ``tokens``, and one after each token of ``draft`` if it comes true."""
        first = len(tokens)
        places = range(first, first + len(draft) + 1)
        samplings = [self._early if p < self._first_late else self._late for p in places]
        if self._history is None:
            return [Draw(one, place) for one, place in zip(samplings, places, strict=True)]
        self._history.extend(tokens[len(self._history) :])
        self._history.extend(draft)
        history = self._history.view()
        self._history.truncate(first)
        return [
            Draw(one, place, self._n_prompt, history[:place])
            for one, place in zip(samplings, places, strict=True)
        ]

    def score(self, token: int, position: int) -> Draw:
        """A draw that only reports the log-probability of a token of the prompt."""
        return Draw(self._score, position, forced_token=token)


def _sampling(
    params: SamplingParams, choice: int, bias: dict[int, float], mask: NDArray[np.uint32] | None
) -> Sampling:
    bias_ids, bias_values = _bias_arrays(bias)
    return Sampling(
        temperature=params.temperature,
        top_p=max(params.top_p, TINY_TOP_P),  # 0 means only the likeliest token
        min_p=params.min_p,
        top_k=params.top_k,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bias_ids=bias_ids,
        bias_values=bias_values,
        mask=mask,
        seed=params.seed,
        choice=choice,
        n_top_logprobs=len(params.logprob_ids) or params.logprobs or 0,
        want_logprob=params.logprobs is not None or bool(params.logprob_ids),
        top_ids=np.array(params.logprob_ids, np.uint32) if params.logprob_ids else None,
    )


def _bias_arrays(
    bias: dict[int, float],
) -> tuple[NDArray[np.uint32] | None, NDArray[np.float32] | None]:
    if not bias:
        return None, None
    return np.array(list(bias), dtype=np.uint32), np.array(list(bias.values()), dtype=np.float32)
