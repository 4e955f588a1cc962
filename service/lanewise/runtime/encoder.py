"""Runs whole texts through a pooled model: embeddings, scores of pairs."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lanewise.runtime.model import Model
from lanewise.runtime.native_session import NativeSession
from lanewise.runtime.sampling import Floats, Uint32s

POOLINGS = {
    "none": "LW_POOL_NONE",
    "mean": "LW_POOL_MEAN",
    "cls": "LW_POOL_FIRST",
    "last": "LW_POOL_LAST",
    "late": "LW_POOL_LATE",
}
# Of each thread: what a step holds of so many tokens stays near the cores. (Zen 5, MiniLM in Q8_0:
# a token takes 6 to 8 % less time than in steps of 512, 12 % less than in steps of 1024.)
CACHED_TOKENS = 128
Ids = npt.NDArray[np.int32] | Uint32s


class Encoder(NativeSession):
    """Threads and workspace for one pooled model; used by one thread at a time.

    ``dims`` is how many floats a result has. ``max_text_tokens`` is the longest text that it takes;
    ``max_tokens`` and ``max_texts`` are the most of one native step, which gives the interpreter to
    others while it runs.
    """

    def __init__(
        self,
        model: Model,
        *,
        threads: int,
        max_tokens: int = 2048,
        max_texts: int = 512,
        kv_type: str = "f32",
    ) -> None:
        """Open one; ``kv_type`` is what keys and values of a layer are held in while it runs."""
        if model.config.pooling is None:
            raise ValueError(f"{model.name} makes logits; accepted: a model that is pooled")
        super().__init__(model)
        self.dims = int(self._native.lib.lw_model_dims(model.handle))
        self.max_tokens, self.max_texts = max_tokens, min(max_texts, max_tokens)
        self.max_text_tokens = min(model.config.context_length, max_tokens)
        self._best_tokens = min(max_tokens, CACHED_TOKENS * threads)
        self._pooling = model.config.pooling
        self._open(
            threads=threads,
            kv_type=kv_type,
            max_batch_tokens=self.max_tokens,
            max_batch_logits=self.max_texts,
        )

    def run(
        self,
        texts: Sequence[Ids],
        token_types: Sequence[Ids] | None = None,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        seen: Sequence[int] | None = None,
    ) -> Floats:
        """Return a row of ``dims`` floats for each text, or with pooling "none" for each token.

        A text is an array of token ids, special tokens among them; ``token_types`` has an array of
        the same length for each, None: all are 0. ``pooling`` is none, mean, cls or last, None:
        what the model says; ``normalize`` likewise. ``seen`` is how many of each text's first
        tokens its tokens see, None: all; others only with pooling "none". Neither other texts nor
        how they are put into steps changes a bit of a result. Raises ValueError for texts that are
        empty, too long, or have ids out of range, before any is run; NativeError for results that
        are not finite.
        """
        kind = self._pooling.kind if pooling is None else pooling
        if kind not in POOLINGS:
            raise ValueError(f"pooling {kind!r} is unknown; accepted: {', '.join(POOLINGS)}")
        normalized = self._pooling.normalize if normalize is None else normalize
        lengths = self._checked_lengths(texts)
        ids = _checked(texts, "token ids", self.model.config.vocab_size)
        types = None
        if token_types is not None:
            if [len(of_text) for of_text in token_types] != lengths:
                raise ValueError("token_types: accepted are as many for each text as it has tokens")
            types = _checked(token_types, "token types", max(self.model.config.n_token_types, 1))
        if seen is not None and len(seen) != len(texts):
            raise ValueError(f"seen: {len(seen)} numbers for {len(texts)} texts")
        firsts = None if seen is None else np.array(seen, np.uint32)
        starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        per_token = kind == "none"
        out = np.empty((int(starts[-1]) if per_token else len(texts), self.dims), np.float32)
        for first, end in self._steps(lengths):
            a, b = int(starts[first]), int(starts[end])
            self._step(
                (starts[first : end + 1] - a).astype(np.uint32),
                ids[a:b],
                None if types is None else types[a:b],
                None if firsts is None else firsts[first:end],
                POOLINGS[kind],
                normalized,
                out[a:b] if per_token else out[first:end],
            )
        return out

    def _checked_lengths(self, texts: Sequence[Ids]) -> list[int]:
        lengths = [len(text) for text in texts]
        for number, length in enumerate(lengths):
            if not 1 <= length <= self.max_text_tokens:
                raise ValueError(
                    f"text {number} has {length} tokens; accepted: 1 to {self.max_text_tokens}"
                )
        return lengths

    def _steps(self, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Which texts, first and end, are run together."""
        first = tokens = 0
        for number, length in enumerate(lengths):
            is_full = tokens + length > self._best_tokens or number - first == self.max_texts
            if is_full and number > first:
                yield first, number
                first, tokens = number, 0
            tokens += length
        if first < len(lengths):
            yield first, len(lengths)

    def _step(
        self,
        start: Uint32s,
        ids: Uint32s,
        types: Uint32s | None,
        seen: Uint32s | None,
        pooling: str,
        normalize: bool,
        out: Floats,
    ) -> None:
        handle = self._open_handle()
        ffi, lib = self._native.ffi, self._native.lib
        texts = ffi.new("lw_texts*")
        kept = [ffi.from_buffer("uint32_t[]", array) for array in (start, ids)]
        texts.n_texts, texts.start, texts.token_ids = len(start) - 1, *kept
        if types is not None:
            texts.token_types = of_types = ffi.from_buffer("uint32_t[]", types)
            kept.append(of_types)
        if seen is not None:
            texts.seen = of_seen = ffi.from_buffer("uint32_t[]", seen)
            kept.append(of_seen)
        texts.pooling, texts.normalize = getattr(lib, pooling), int(normalize)
        to = ffi.from_buffer("float[]", out, require_writable=True)
        self._native.check(lib.lw_encode(handle, texts, to))


def _checked(arrays: Sequence[Ids], what: str, limit: int) -> Uint32s:
    """All numbers one after the other."""
    if not arrays:
        return np.empty(0, np.uint32)
    for number, array in enumerate(arrays):
        least, most = int(array.min()), int(array.max())
        if least < 0 or most >= limit:
            raise ValueError(
                f"text {number} has {what} from {least} to {most}; accepted: 0 to {limit - 1}"
            )
    return np.concatenate(arrays).astype(np.uint32, copy=False)
