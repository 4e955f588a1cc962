"""Guesses by a head that makes several at once (DFlash).

The model's steps write the head's keys and values of each token into the blocks of the head's
layers, and nothing else of a sequence is kept. The head reads the last known token and a mask for
each guess. What it stores of these lies where the model's next step stores anew.
"""

import time
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.positions import positions_at
from lanewise.engine.base.runner import ModelRunner
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.guessing.draft_model import Drafter, Reader
from lanewise.engine.guessing.prediction_head import PredictionHead
from lanewise.runtime import RUN_HEAD, Batch, Draw, Model, raise_failed


def head_of(runner: ModelRunner, config: EngineConfig, model: Model) -> Drafter | None:
    """What guesses by the head of a model; None if it has none."""
    program = model.config
    if not program.has_mtp:
        return None
    if (of := program.blocks) is not None:
        return BlockHead(runner, config, of.block, of.mask_token, of.sees_ahead)
    return PredictionHead(runner, config, program.reader is not None)


class BlockHead(PredictionHead):
    """Runs the head for many sequences at once, between two steps of the model."""

    may_sleep = True

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        block: int,
        mask_token: int,
        sees_ahead: bool,
    ) -> None:
        """Up to ``block`` tokens of a sequence are read together, masks among them.

        ``sees_ahead``: each of them sees all the others, not only those before it.
        """
        super().__init__(runner, config)
        self._most_guesses = block - 1
        self._mask_token = mask_token
        self._sees_ahead = sees_ahead

    def room(self, sequence: Scheduled) -> int:
        """How many tokens can be guessed now."""
        return min(self._most_guesses, super().room(sequence))

    def seconds(self, sequences: int, length: int) -> float:
        """The expected time of so many guesses for each of some sequences: one batch."""
        return self.costs.seconds(sequences * (1 + length))

    def guess(
        self,
        wanted: Sequence[tuple[Scheduled, Reader, int]],
        block_tables: NDArray[np.uint32],
    ) -> list[list[int]]:
        """The wanted number of tokens for each sequence; its blocks must have room."""
        began = time.perf_counter()
        sequences = [one for one, _, _ in wanted]
        counts = [count for _, _, count in wanted]
        starts = [0, *accumulate(1 + count for count in counts)]
        known = [len(one.tokens) for one in sequences]
        token_ids: list[int] = []
        for one, count in zip(sequences, counts, strict=True):
            token_ids += [one.tokens[-1], *[self._mask_token] * count]
        rows = range(starts[-1])
        positions = None
        if self.has_own_positions(sequences):
            parts = zip(sequences, known, counts, strict=True)
            positions = np.concatenate(
                [positions_at(one, n - 1, 1 + count) for one, n, count in parts], axis=1
            )
        batch = Batch(
            token_ids=token_ids,
            query_start=starts,
            context_lens=[n - 1 for n in known],
            block_tables=block_tables,
            logit_rows=sorted(set(rows) - set(starts)),
            table_rows=[one.table_row for one in sequences],
            positions=positions,
            sees=np.repeat(np.add(known, counts), np.add(counts, 1)) if self._sees_ahead else None,
            runs=RUN_HEAD,
        )
        draws = [
            Draw(reader.sampling, n + place)
            for (_, reader, count), n in zip(wanted, known, strict=True)
            for place in range(count)
        ]
        sampled = self._runner.step_and_draw(batch, draws)
        raise_failed(sampled)
        self.costs.note(len(token_ids), time.perf_counter() - began)
        drawn = iter([one.token for one in sampled])
        return [[next(drawn) for _ in range(count)] for count in counts]
