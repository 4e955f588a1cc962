"""How the next token of a sequence is drawn, as its request asked."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lanewise.runtime import Sampling

TINY_TOP_P = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a request says about drawing; every value has been checked before."""

    seed: int
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = (
        None  # alternatives reported beside each token; None = no log-probabilities
    )
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt

    @property
    def has_penalties(self) -> bool:
        """Whether drawing depends on the tokens so far."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def allowed_mask(vocab_size: int, allowed: Iterable[int]) -> NDArray[np.uint32]:
    """One bit for each token, set for the allowed ones."""
    mask = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
    ids = np.fromiter(allowed, dtype=np.int64)
    np.bitwise_or.at(mask, ids // 32, np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32)))
    return mask


class Sampler:
    """Makes the native parameters of each draw of one sequence; what never changes is made once."""

    def __init__(
        self, params: SamplingParams, choice: int, n_prompt: int, mask: NDArray[np.uint32] | None
    ) -> None:
        self._params = params
        self._choice = choice
        self._n_prompt = n_prompt
        self._mask = mask
        bias = dict(params.logit_bias)
        self._bias = _bias_arrays(bias)
        # Before min_tokens tokens are out, whatever would end the answer is forbidden.
        self._early_bias = _bias_arrays(bias | dict.fromkeys(params.stop_token_ids, -np.inf))

    def draw(self, history: NDArray[np.uint32]) -> Sampling:
        """The draw of the token that follows ``history``, the prompt included."""
        params = self._params
        position = len(history)
        early = position - self._n_prompt < params.min_tokens
        bias_ids, bias_values = self._early_bias if early else self._bias
        return Sampling(
            temperature=params.temperature,
            top_p=max(params.top_p, TINY_TOP_P),  # 0 means what its limit means: the likeliest only
            min_p=params.min_p,
            top_k=params.top_k,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            n_prompt=self._n_prompt if params.has_penalties else 0,
            history=history if params.has_penalties else None,
            bias_ids=bias_ids,
            bias_values=bias_values,
            mask=self._mask,
            seed=params.seed,
            choice=self._choice,
            position=position,
            n_top_logprobs=params.logprobs or 0,
            want_logprob=params.logprobs is not None,
        )

    def score(self, token: int, position: int) -> Sampling:
        """Not a draw: the log-probability of a token of the prompt."""
        return Sampling(
            temperature=0.0,
            seed=self._params.seed,
            choice=self._choice,
            position=position,
            forced_token=token,
            n_top_logprobs=self._params.prompt_logprobs or 0,
            want_logprob=True,
        )


def _bias_arrays(
    bias: dict[int, float],
) -> tuple[NDArray[np.uint32] | None, NDArray[np.float32] | None]:
    if not bias:
        return None, None
    return np.array(list(bias), dtype=np.uint32), np.array(list(bias.values()), dtype=np.float32)
