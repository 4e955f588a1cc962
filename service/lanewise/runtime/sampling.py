"""How tokens are drawn, and what is drawn, as the library reads and writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanewise.native.library import NO_TOKEN, NONFINITE, NativeError

MAX_TOP_LOGPROBS = 20
DRAW_FAULTS = {
    NO_TOKEN: "bias and mask allow no token",
    NONFINITE: "the logits hold NaN or infinity",
}

Uint32s = NDArray[np.uint32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Sampling:
    """How the tokens of one sequence are drawn; the fields are those of ``lw_sampling``.

    ``mask`` holds one bit for each token of the vocabulary. Make one for a sequence and keep it:
    the session translates it once.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_ids: Uint32s | None = None
    bias_values: Floats | None = None
    mask: Uint32s | None = None
    seed: int = 0
    choice: int = 0
    n_top_logprobs: int = 0
    want_logprob: bool = False
    top_ids: Uint32s | None = None  # of the n_top_logprobs tokens to tell of; None: the likeliest


class Draw(NamedTuple):
    """One token to draw from one row of logits; the fields are those of ``lw_draw``.

    ``history`` holds the prompt (the first ``n_prompt`` entries) and the output, and is only read
    by penalties.
    """

    sampling: Sampling
    position: int = 0
    n_prompt: int = 0
    history: Uint32s | None = None
    forced_token: int = -1


class Sampled(NamedTuple):
    """One token drawn; ``logprob`` and ``top`` (id, logprob) are filled when asked for.

    ``top`` has the likeliest first, or the tokens that were asked for, in that order.

    Where the draw failed ``error`` says why, and ``token`` is 0.
    """

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()
    error: NativeError | None = None


def raise_failed(drawn: Sequence[Sampled]) -> None:
    """Raise the first error of some draws, for a caller that needs all of them."""
    for one in drawn:
        if one.error is not None:
            raise one.error


def draw_error(place: int, status: int) -> NativeError | None:
    """Why a draw failed; None if it did not."""
    if status == 0:
        return None
    return NativeError(f"draw {place}: {DRAW_FAULTS[status]}", status)


class NativeSampling:
    """A ``lw_sampling`` and what it points to."""

    def __init__(self, ffi: Any, sampling: Sampling, vocab_size: int) -> None:
        def borrow(kind: str, array: NDArray[Any] | None, dtype: type) -> tuple[int, Any]:
            if array is None or len(array) == 0:
                return 0, ffi.NULL
            return len(array), ffi.from_buffer(kind, np.ascontiguousarray(array, dtype=dtype))

        n_bias, bias_ids = borrow("uint32_t[]", sampling.bias_ids, np.uint32)
        n_values, bias_values = borrow("float[]", sampling.bias_values, np.float32)
        if n_values != n_bias:
            raise ValueError(f"bias_ids has {n_bias} entries, bias_values {n_values}")
        words, mask = borrow("uint32_t[]", sampling.mask, np.uint32)
        if sampling.mask is not None and words * 32 < vocab_size:
            raise ValueError(
                f"mask has {words} words; accepted: a bit for each of {vocab_size} tokens"
            )
        n_top, top_ids = borrow("uint32_t[]", sampling.top_ids, np.uint32)
        if sampling.top_ids is not None and n_top != sampling.n_top_logprobs:
            raise ValueError(f"top_ids has {n_top} entries of {sampling.n_top_logprobs}")
        self._owners = (bias_ids, bias_values, mask, top_ids)
        self.struct = ffi.new(
            "lw_sampling*",
            {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "top_k": sampling.top_k,
                "repetition_penalty": sampling.repetition_penalty,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "n_bias": n_bias,
                "bias_ids": bias_ids,
                "bias_values": bias_values,
                "mask": mask,
                "seed": sampling.seed & 0xFFFF_FFFF_FFFF_FFFF,
                "choice": sampling.choice,
                "n_top_logprobs": sampling.n_top_logprobs,
                "want_logprob": sampling.want_logprob,
                "top_ids": top_ids,
            },
        )


def columns(ffi: Any, array: Any, struct: str, **formats: str) -> tuple[NDArray[Any], ...]:
    """Some members of the structs in a C array, each as an array that shares its memory."""
    layout = np.dtype(
        {
            "names": list(formats),
            "formats": list(formats.values()),
            "offsets": [ffi.offsetof(struct, name) for name in formats],
            "itemsize": ffi.sizeof(struct),
        }
    )
    records = np.frombuffer(ffi.buffer(array), layout)
    return tuple(records[name] for name in formats)
