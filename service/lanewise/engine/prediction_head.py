"""A head of the model itself that guesses what it will say (multi-token prediction).

The model's own steps write the head's keys and values into the blocks of its layers, and leave the
row that the head begins at in the place of a sequence's state. So whatever becomes of a sequence,
the head is where the model is: a hit in the prefix cache, a preemption, guesses that failed.
"""

import time
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.config import EngineConfig
from lanewise.engine.draft_model import Reader, draft_sampling
from lanewise.engine.row_costs import RowCosts
from lanewise.engine.runner import ModelRunner
from lanewise.engine.sampling import allowed_mask
from lanewise.engine.sequence import Sequence
from lanewise.runtime import RUN_HEAD, RUN_HEAD_AGAIN, Batch, Draw, raise_failed


class PredictionHead:
    """Runs the head for many sequences at once, between two steps of the model."""

    def __init__(self, runner: ModelRunner, config: EngineConfig) -> None:
        """``runner`` runs the model, which has a head; ``config`` is the engine's."""
        self.costs = RowCosts()
        self._runner = runner
        self._vocab_size = config.vocab_size
        unused = set(config.unused_ids)
        usable = [id_ for id_ in range(config.vocab_size) if id_ not in unused]
        self._mask = allowed_mask(config.vocab_size, usable)
        self._most_tokens = config.max_model_len

    def reader(self, sequence: Sequence) -> Reader:
        """For a sequence that may be guessed."""
        return Reader(draft_sampling(sequence, self._mask, self._vocab_size))

    def room(self, sequence: Sequence) -> int:
        """Most tokens that can be guessed now.

        A sequence that has not been drawn from since it was admitted has none: its state may be a
        copy that the next step is to make.
        """
        if len(sequence.tokens) <= sequence.n_admitted:
            return 0
        return max(0, self._most_tokens - len(sequence.tokens))

    def guess(
        self,
        wanted: Items[tuple[Sequence, Reader, int]],
        block_tables: NDArray[np.uint32],
    ) -> list[list[int]]:
        """So many tokens for each sequence, whose blocks have room for them."""
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
                context_lens=[len(one.tokens) - 1 + length for one in sequences],
                block_tables=block_tables,
                logit_rows=range(len(live)),
                table_rows=[one.table_row for one in sequences],
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

    def close(self) -> None:
        """Nothing: the session is the engine's."""
