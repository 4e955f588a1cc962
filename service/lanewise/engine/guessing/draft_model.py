"""A small model with the same vocabulary that guesses the large model's next tokens.

Its KV cache has as many blocks as the large model's, and a sequence uses the same block numbers in
both; each model has all layers in one group. The draft model reads a text only when it is to guess,
and draws as the request asks, with the same random numbers. So the more alike the models are, the
more often both draw the same token.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.block_pool import Key
from lanewise.engine.base.runner import ModelRunner
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.drawing.sampling import allowed_mask
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.runtime import BLOCK_TOKENS, Batch, Draw, Sampling, raise_failed


@dataclass(slots=True)
class Reader:
    """How far the draft model has read one sequence."""

    sampling: Sampling
    n_read: int = 0  # tokens whose keys and values are in its cache
    n_preempted: int = 0  # the sequence's count of preemptions when these were written


@dataclass(slots=True)
class _Run:
    """One sequence for which tokens are guessed."""

    sequence: Scheduled
    reader: Reader
    wanted: int
    guessed: list[int] = field(default_factory=list)


class Drafter(Protocol):
    """Something that guesses for many sequences at once: a draft model, or a head of the model."""

    costs: RowCosts
    may_sleep: bool  # steps need not keep anything for it of sequences that do not ask it

    def reader(self, sequence: Scheduled) -> Reader:
        """A new reader for a sequence that may be guessed for."""

    def room(self, sequence: Scheduled) -> int:
        """How many tokens can be guessed now."""

    def seconds(self, sequences: int, length: int) -> float:
        """The expected time of so many guesses for each of some sequences; costs are known."""

    def guess(
        self, wanted: Sequence[tuple[Scheduled, Reader, int]], block_tables: NDArray[np.uint32]
    ) -> list[list[int]]:
        """Up to the wanted number of tokens for each sequence; its blocks must have room."""

    def close(self) -> None:
        """Free everything."""


def draft_sampling(sequence: Scheduled, usable: NDArray[np.uint32], vocab_size: int) -> Sampling:
    """How guesses for a sequence are drawn: as its request asks, among ``usable`` tokens."""
    params, mask = sequence.request.params, usable
    if params.allowed_token_ids is not None:
        ids = [one for one in params.allowed_token_ids if one < vocab_size]
        mask = mask & allowed_mask(vocab_size, ids)
    return Sampling(
        temperature=params.temperature if mask.any() else 0.0,
        top_p=max(params.top_p, float(np.finfo(np.float32).tiny)),
        min_p=params.min_p,
        top_k=params.top_k,
        mask=mask if mask.any() else usable,
        seed=params.seed,
        choice=sequence.request.choice,
    )


def settle(sequence: Scheduled, reader: Reader) -> None:
    """After the large model's step: no longer count wrong guesses as read."""
    reader.n_read = min(reader.n_read, len(sequence.tokens) - 1)


class DraftModel:
    """Runs the draft model for many sequences at once."""

    may_sleep = False

    def __init__(
        self,
        runner: ModelRunner,
        *,
        vocab_size: int,
        usable_ids: Sequence[int],
        context_length: int,
        max_step_tokens: int,
        prefix_cache: bool,
        n_blocks: int,
    ) -> None:
        """``usable_ids`` are tokens of both models; ``vocab_size`` is of the draft's logits."""
        self.costs = RowCosts()
        self._runner = runner
        self._vocab_size = vocab_size
        self._mask = allowed_mask(vocab_size, usable_ids)
        self._context_length = context_length
        self._max_step_tokens = max_step_tokens
        # The key of the text in each full block of this cache; the large model's may hold more
        # blocks.
        self._keys: list[Key | None] | None = [None] * n_blocks if prefix_cache else None

    def reader(self, sequence: Scheduled) -> Reader:
        """A new reader for a sequence that may be guessed for."""
        return Reader(draft_sampling(sequence, self._mask, self._vocab_size))

    def room(self, sequence: Scheduled) -> int:
        """How many tokens can be guessed before the draft model's context ends.

        None with pictures: it has no tower, and would read placeholders.
        """
        if sequence.request.pictures:
            return 0
        return max(0, self._context_length - len(sequence.tokens))

    def seconds(self, sequences: int, length: int) -> float:
        """The expected time of so many guesses for each of some sequences: a step for each."""
        return length * self.costs.seconds(sequences)

    def guess(
        self,
        wanted: Sequence[tuple[Scheduled, Reader, int]],
        block_tables: NDArray[np.uint32],
    ) -> list[list[int]]:
        """Up to the wanted number of tokens for each sequence; its blocks must have room.

        A long new text is read in chunks, one a call, and gets no guess before its last chunk.
        """
        runs = [_Run(*one) for one in wanted]
        for run in runs:
            self._find(run.sequence, run.reader)
        live = self._read(runs, block_tables)
        while live := [run for run in live if len(run.guessed) < run.wanted]:
            self._step([(run, run.guessed[-1:]) for run in live], live, block_tables)
        return [run.guessed for run in runs]

    def close(self) -> None:
        """Free everything."""
        self._runner.close()

    def _find(self, sequence: Scheduled, reader: Reader) -> None:
        """Set ``n_read``: tokens in the draft's cache, from this sequence or a shared prefix."""
        if reader.n_preempted != sequence.n_preempted:
            reader.n_read, reader.n_preempted = 0, sequence.n_preempted
        if reader.n_read == 0 and self._keys is not None:
            for index in range((len(sequence.tokens) - 1) // BLOCK_TOKENS):
                if self._keys[sequence.tables[0].blocks[index]] != sequence.block_key(index):
                    break
                reader.n_read += BLOCK_TOKENS

    def _read(self, runs: list[_Run], block_tables: NDArray[np.uint32]) -> list[_Run]:
        """Read each text's new tokens; draw a guess for each text that is read to its end."""
        left = self._max_step_tokens
        parts, drawing = [], []
        for run in runs:
            tokens, first = run.sequence.tokens, run.reader.n_read
            part = tokens[first : first + left]
            if not part:
                continue
            left -= len(part)
            parts.append((run, part))
            if first + len(part) == len(tokens):
                drawing.append(run)
        self._step(parts, drawing, block_tables)
        for run, _ in parts:
            self._keep(run.sequence, run.reader)
        return drawing

    def _step(
        self,
        parts: list[tuple[_Run, list[int]]],
        drawing: list[_Run],
        block_tables: NDArray[np.uint32],
    ) -> None:
        began = time.perf_counter()
        token_ids: list[int] = []
        query_start, logit_rows = [0], []
        drawers = iter([*drawing, None])
        next_drawer = next(drawers)
        draws: list[Draw] = []
        for run, part in parts:
            token_ids += part
            query_start.append(len(token_ids))
            if run is next_drawer:
                logit_rows.append(len(token_ids) - 1)
                position = len(run.sequence.tokens) + len(run.guessed)
                draws.append(Draw(run.reader.sampling, position))
                next_drawer = next(drawers)
        batch = Batch(
            token_ids=token_ids,
            query_start=query_start,
            context_lens=[run.reader.n_read for run, _ in parts],
            block_tables=block_tables,
            logit_rows=logit_rows,
            table_rows=[run.sequence.table_row for run, _ in parts],
        )
        if self._keys is not None:
            for run, part in parts:
                first, end = run.reader.n_read, run.reader.n_read + len(part)
                for index in range(first // BLOCK_TOKENS, (end - 1) // BLOCK_TOKENS + 1):
                    self._keys[run.sequence.tables[0].blocks[index]] = None  # it is overwritten
        sampled = self._runner.step_and_draw(batch, draws)
        raise_failed(sampled)
        for run, part in parts:
            run.reader.n_read += len(part)
        for run, one in zip(drawing, sampled, strict=True):
            run.guessed.append(one.token)
        self.costs.note(len(token_ids), time.perf_counter() - began)

    def _keep(self, sequence: Scheduled, reader: Reader) -> None:
        """Note the keys of the blocks that are full now."""
        if self._keys is not None:
            full = reader.n_read // BLOCK_TOKENS
            for index in range(full - 1, -1, -1):
                block, key = sequence.tables[0].blocks[index], sequence.block_key(index)
                if self._keys[block] == key:
                    break
                self._keys[block] = key
