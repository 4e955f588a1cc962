"""Guesses by the model's own head (multi-token prediction).

The model's steps write the head's keys and values into the blocks of the head's layers. They leave
the hidden row from which the head starts in the sequence's place for a state. So the head follows
the model through prefix-cache hits, preemptions and failed guesses.

A head without keys of its own reads the model's. It runs one token behind the text, so that it sees
what the model has stored, and every guess has the position of the last known token.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.positions import AXES, Uint32s, positions_at
from lanewise.engine.base.runner import ModelRunner
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.drawing.sampling import allowed_mask
from lanewise.engine.guessing.draft_model import Reader, draft_sampling
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.runtime import RUN_HEAD, RUN_HEAD_AGAIN, Batch, Draw, raise_failed


class PredictionHead:
    """Runs the head for many sequences at once, between two steps of the model."""

    may_sleep = False

    def __init__(self, runner: ModelRunner, config: EngineConfig, reads_keys: bool = False) -> None:
        """``runner`` runs the model with its head; ``config`` is the engine's."""
        self.costs = RowCosts()
        self._runner = runner
        self._vocab_size = config.vocab_size
        unused = set(config.unused_ids)
        usable = [id_ for id_ in range(config.vocab_size) if id_ not in unused]
        self._mask = allowed_mask(config.vocab_size, usable)
        self._most_tokens = config.max_model_len
        self._n_axes = config.pictures.n_axes
        self._behind = int(reads_keys)

    def reader(self, sequence: Scheduled) -> Reader:
        """A new reader for a sequence that may be guessed for."""
        return Reader(draft_sampling(sequence, self._mask, self._vocab_size))

    def room(self, sequence: Scheduled) -> int:
        """How many tokens can be guessed now.

        0 until a sequence has drawn since its admission: before that its state may be a copy that
        the next step has still to make.
        """
        if len(sequence.tokens) <= max(sequence.n_admitted, 1 + self._behind):
            return 0
        return max(0, self._most_tokens - len(sequence.tokens))

    def seconds(self, sequences: int, length: int) -> float:
        """The expected time of so many guesses for each of some sequences: a batch for each."""
        return length * self.costs.seconds(sequences)

    def guess(
        self,
        wanted: Sequence[tuple[Scheduled, Reader, int]],
        block_tables: NDArray[np.uint32],
    ) -> list[list[int]]:
        """Up to the wanted number of tokens for each sequence; its blocks must have room."""
        guessed: list[list[int]] = [[] for _ in wanted]
        for length in range(max((count for _, _, count in wanted), default=0)):
            live = [place for place, (_, _, count) in enumerate(wanted) if count > length]
            tokens = [
                guessed[place][-1] if length else wanted[place][0].tokens[-1] for place in live
            ]
            sequences = [wanted[place][0] for place in live]
            began = time.perf_counter()
            batch = Batch(
                token_ids=tokens,
                query_start=range(len(live) + 1),
                context_lens=[self._place(one, length) - self._behind for one in sequences],
                block_tables=block_tables,
                logit_rows=range(len(live)),
                table_rows=[one.table_row for one in sequences],
                positions=self._positions(sequences, length),
                accepted=None if length else [one.n_accepted for one in sequences],
                runs=RUN_HEAD_AGAIN if length else RUN_HEAD,
            )
            draws = [
                Draw(wanted[place][1].sampling, len(wanted[place][0].tokens) + length)
                for place in live
            ]
            sampled = self._runner.step_and_draw(batch, draws)
            raise_failed(sampled)
            for place, one in zip(live, sampled, strict=True):
                guessed[place].append(one.token)
            self.costs.note(len(live), time.perf_counter() - began)
        return guessed

    def _place(self, sequence: Scheduled, length: int) -> int:
        """The place of what is fed; a head that reads the model's keys stays where it is."""
        return len(sequence.tokens) - 1 + (0 if self._behind else length)

    def has_own_positions(self, sequences: Sequence[Scheduled]) -> bool:
        """Whether tokens of some of these sequences have positions other than their places."""
        return self._n_axes > 1 and any(one.request.pictures for one in sequences)

    def _positions(self, sequences: Sequence[Scheduled], length: int) -> Uint32s | None:
        """Positions of what is fed, so many tokens behind the last known; None: the places."""
        has_own = self.has_own_positions(sequences)
        places = [self._place(one, length) for one in sequences]
        if not has_own:
            return np.tile(np.array(places, np.uint32), (AXES, 1)) if self._behind else None
        found = [positions_at(one, at, 1) for one, at in zip(sequences, places, strict=True)]
        return np.concatenate(found, axis=1)

    def close(self) -> None:
        """Do nothing: the engine owns the session."""
