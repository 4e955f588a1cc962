"""A language model in a few lines for tests: deterministic, paged like the real one, no meaning."""

import threading
import time
from collections.abc import Sequence
from concurrent import futures
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lanewise.runtime import (
    BLOCK_TOKENS,
    DRAWN_BEFORE,
    NO_TOKEN,
    Batch,
    Counters,
    Draw,
    Finished,
    NativeError,
    Sampled,
    StepRefusedError,
)

MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class ToyAdapter:
    """Changes every answer by its salt; whoever computes with a closed one is told."""

    def __init__(self, salt: int) -> None:
        self.salt = salt
        self.digest = salt.to_bytes(32, "little")
        self.closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def tables_of(batch: Batch) -> NDArray[np.uint32]:
    """The block tables [rows][groups of layers][blocks]."""
    tables = np.asarray(batch.block_tables)
    return tables if tables.ndim == 3 else tables[:, None]


class Script:
    """What answers to a prompt of so many tokens say, as far as masks let them; then the end."""

    def __init__(self, answers: Sequence[Sequence[int]], end: int, n_prompt: int) -> None:
        self._answers = answers  # by choice
        self._end = end
        self._n_prompt = n_prompt

    def next_token(self, draw: Draw) -> int | None:
        """What is to be drawn; None for a prompt's own tokens."""
        place = draw.position - self._n_prompt
        if draw.forced_token >= 0 or place < 0:
            return None
        answer = self._answers[draw.sampling.choice % len(self._answers)]
        return answer[place] if place < len(answer) else self._end


class ToyRunner:
    """Logits are a hash of the tokens that are seen before them, read through the block tables.

    Whoever writes into a block of another sequence, skips a token or feeds one twice changes the
    answer, as with a real cache. With ``n_states`` places they depend on a state too, a hash of all
    tokens in order: one that is of other tokens, or that was not copied in time, changes them.
    Beside it each place remembers what it would be behind each guess.
    """

    def __init__(
        self,
        *,
        n_blocks: int,
        vocab_size: int,
        max_batch_tokens: int,
        max_batch_logits: int,
        n_padding: int = 0,
        windows: tuple[int | None, ...] = (None,),
        n_states: int = 0,
    ) -> None:
        self._windows = windows
        self._n_tokens = vocab_size - n_padding
        self._cache = np.zeros((n_blocks, BLOCK_TOKENS), dtype=np.uint64)
        self._states: list[tuple[int, ...]] = [(0,)] * n_states
        self._vocab_size = vocab_size
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_logits = max_batch_logits
        self._counters = Counters(0, 0, 0, 0, 0, 0)
        self._holds = 0
        self._held = threading.Condition()
        self._n_computed = 0  # steps that are or were to draw
        self.batches: list[Batch] = []
        self.fail_on_token: int | None = None
        self.gate = threading.Event()  # cleared: steps wait
        self.gate.set()
        self.delay_s = 0.0
        self.closed = False
        self._thread = futures.ThreadPoolExecutor(1)
        self._begun: list[futures.Future[Finished]] = []
        self._n_draws = 0  # of the last step begun
        self._drawn: list[int] = []  # by the last step that was run
        self._behind_failure = False  # of a step that was begun
        self.n_begun = 0  # ahead
        self.most_begun: int | None = None  # what comes ahead after so many is refused
        self.script: Script | None = None

    def step_and_draw(self, batch: Batch, draws: Sequence[Draw]) -> list[Sampled]:
        began = time.perf_counter()
        batch = replace(batch, token_ids=self._known(batch.token_ids))
        self.gate.wait()
        if self.delay_s:
            threading.Event().wait(self.delay_s)
        start = np.asarray(batch.query_start)
        tables = tables_of(batch)[batch.table_rows]
        tokens = np.array(batch.token_ids, np.int64)
        for first, seen_rows in batch.rows:
            tokens[first : first + len(seen_rows)] = seen_rows.view(np.uint32)[:, 0]
        assert 0 < len(tokens) <= self._max_batch_tokens
        assert len(batch.logit_rows) <= self._max_batch_logits
        assert (np.diff(start.astype(int)) > 0).all()
        self._copy(batch)
        if self.fail_on_token is not None and self.fail_on_token in tokens:
            self._spoil_states(batch)
            raise RuntimeError("a value in layer 0 is not finite")
        self.batches.append(batch)
        hashes = []
        adapters = batch.adapters or [None] * len(batch.context_lens)
        assert len(adapters) == len(batch.context_lens)
        for row, context in enumerate(map(int, batch.context_lens)):
            adapter = adapters[row]
            assert adapter is None or not adapter.closed
            salt = 0 if adapter is None else adapter.salt
            place = batch.table_rows[row] if batch.table_rows is not None else row
            state = self._state_of(batch, row, place) if self._states and context else 0
            own = tokens[start[row] : start[row + 1]]
            last_true = len(own) - 1 - (batch.guesses[row] if batch.guesses else 0)
            kept: list[int] = []
            for offset, token in enumerate(own):
                position = context + offset
                seen = self._read(tables[row], position)
                if self._states:
                    state = mix(state ^ mix(int(token)) ^ salt)
                    if offset >= last_true:
                        kept.append(state)
                value = mix(
                    hash(tuple(seen)) & MASK ^ mix(int(token) * 7919 + position) ^ salt ^ state
                )
                for group, blocks in enumerate(tables[row][:, position // BLOCK_TOKENS]):
                    self._cache[blocks, position % BLOCK_TOKENS] = (value + group) & MASK
                hashes.append(value)
            if self._states:
                self._states[place] = tuple(kept)
        last = self._counters
        held_s = self._wait_for_release()
        self._counters = Counters(
            steps=last.steps + 1,
            tokens=last.tokens + len(tokens),
            gemv_calls=last.gemv_calls + (len(tokens) == 1),
            gemm_calls=last.gemm_calls + (len(tokens) > 1),
            gemv_rows=last.gemv_rows + (len(tokens) if len(tokens) == 1 else 0),
            gemm_rows=last.gemm_rows + (len(tokens) if len(tokens) > 1 else 0),
            native_seconds=last.native_seconds + time.perf_counter() - began,
            held_seconds=last.held_seconds + held_s,
        )
        rows = [np.random.default_rng(hashes[int(row)]) for row in batch.logit_rows]
        logits = [rng.standard_normal(self._vocab_size, dtype=np.float32) * 3 for rng in rows]
        matrix = np.array(logits, dtype=np.float32).reshape(len(logits), self._vocab_size)
        matrix[:, self._n_tokens :] = -20  # a trained model gives its padding next to nothing
        for row, draw in zip(matrix, draws, strict=True):
            if self.script is not None and (token := self.script.next_token(draw)) is not None:
                row[token] += 100
        drawn = [_sample(row, one) for row, one in zip(matrix, draws, strict=True)]
        self._drawn = [one.token for one in drawn]
        return drawn

    @property
    def block_bytes(self) -> int:
        return self._cache.itemsize * BLOCK_TOKENS

    @property
    def state_bytes(self) -> int:
        return 8 if self._states else 0

    def read_block(self, block: int, into: bytearray) -> None:
        into[:] = self._cache[block].tobytes()

    def write_block(self, block: int, data: bytearray) -> None:
        self._cache[block] = np.frombuffer(data, np.uint64)

    def read_state(self, place: int, into: bytearray) -> None:
        into[:] = self._states[place][0].to_bytes(8, "little")

    def write_state(self, place: int, data: bytearray) -> None:
        self._states[place] = (int.from_bytes(data, "little"),)

    def _copy(self, batch: Batch) -> None:
        """Make the copies of a batch."""
        for source, target in batch.block_copies:
            self._cache[target] = self._cache[source]
        for source, target in batch.state_copies:
            self._states[target] = self._states[source]

    def _state_of(self, batch: Batch, row: int, place: int) -> int:
        """The state of a sequence behind the guesses that a step is told came true."""
        accepted = batch.accepted[row] if batch.accepted else 0
        assert accepted < len(self._states[place]), "more guesses are accepted than there were"
        return self._states[place][accepted]

    def _spoil_states(self, batch: Batch) -> None:
        """A step that fails leaves anything in the states of its sequences."""
        for place in batch.table_rows or () if self._states else ():
            self._states[place] = (0xBAD,)

    def start(self, batch: Batch, draws: Sequence[Draw]) -> None:
        assert len(self._begun) < 2
        if self.n_begun == self.most_begun:
            raise RuntimeError("the arguments are not as they should be")
        self.n_begun += 1
        ids = list(map(int, batch.token_ids))
        self._check(ids, self._n_draws if self._begun else len(self._drawn))
        if not self._begun:
            self._behind_failure = False
        self._n_draws = len(draws)
        # The scheduler's table goes on changing, but not in what this step reads.
        seen = self._tables_seen(batch)
        self._begun.append(self._thread.submit(self._run_begun, batch, draws, ids, seen))

    def _tables_seen(self, batch: Batch) -> list[list[int]]:
        """The blocks that a batch reads and writes, for each of its sequences and each group."""
        tables = tables_of(batch)
        counts = np.diff(batch.query_start)
        rows = zip(batch.table_rows or (), batch.context_lens, counts, strict=True)
        return [
            tables[
                row, group, self._first(window, context) // BLOCK_TOKENS : -(-end // BLOCK_TOKENS)
            ].tolist()
            for row, context, end in ((row, int(n), int(n + count)) for row, n, count in rows)
            for group, window in enumerate(self._windows)
        ]

    def _run_begun(
        self, batch: Batch, draws: Sequence[Draw], ids: list[int], seen: list[list[int]]
    ) -> Finished:
        if self._behind_failure:
            raise StepRefusedError("the step before this one failed", 1)
        began = time.perf_counter()
        known = self._known(ids)
        draws = [
            draw._replace(history=np.append(draw.history, np.uint32(known[row])))
            if draw.history is not None and ids[row] >= DRAWN_BEFORE
            else draw
            for row, draw in zip(batch.logit_rows, draws, strict=True)
        ]
        self._drawn = []  # none if this one fails
        try:
            drawn = self.step_and_draw(replace(batch, token_ids=known), draws)
        except Exception:
            self._behind_failure = True
            raise
        assert self._tables_seen(batch) == seen
        return Finished(drawn, began, time.perf_counter())

    def _known(self, ids: Sequence[int]) -> list[int]:
        """Tokens, those in the place of draws of the step before among them."""
        self._check(ids, len(self._drawn))
        return [self._drawn[one - DRAWN_BEFORE] if one >= DRAWN_BEFORE else one for one in ids]

    @staticmethod
    def _check(ids: Sequence[int], n_drawn: int) -> None:
        missing = [one - DRAWN_BEFORE for one in ids if one >= DRAWN_BEFORE + n_drawn]
        if missing:
            asked = f"draw {missing[0]} of the step before is asked for"
            raise StepRefusedError(f"{asked}, which has {n_drawn}", 1)

    def wait(self, seconds: float) -> bool:
        done, _ = futures.wait(self._begun[:1], max(0.0, seconds))
        return bool(done)

    def finish(self) -> Finished:
        return self._begun.pop(0).result()

    def _read(self, tables: NDArray[np.uint32], position: int) -> list[int]:
        """What the token at a position sees in all groups, itself left out."""
        seen: list[int] = []
        for table, window in zip(tables, self._windows, strict=True):
            first = self._first(window, position)
            start = first // BLOCK_TOKENS
            here = self._cache[table[start : -(-position // BLOCK_TOKENS)]].reshape(-1)
            seen += here[first - start * BLOCK_TOKENS : position - start * BLOCK_TOKENS].tolist()
        return seen

    @staticmethod
    def _first(window: int | None, position: int) -> int:
        """The first token that the one at a position sees."""
        return 0 if window is None else max(0, position + 1 - window)

    def hold_draws(self) -> None:
        with self._held:
            self._holds += 1

    def release_draws(self) -> None:
        with self._held:
            self._holds -= 1
            assert self._holds >= 0
            self._held.notify_all()

    def _wait_for_release(self) -> float:
        began = time.perf_counter()
        with self._held:
            self._n_computed += 1
            self._held.notify_all()
            assert self._held.wait_for(lambda: self._holds == 0, 10), "nobody releases the draws"
        return time.perf_counter() - began

    def wait_until_computed(self, n_steps: int) -> None:
        """Return when so many steps have come to their draws."""
        with self._held:
            assert self._held.wait_for(lambda: self._n_computed >= n_steps, 10)

    def counters(self) -> Counters:
        return self._counters

    def close(self) -> None:
        self._thread.shutdown()
        self.closed = True


def _sample(row: NDArray[np.float32], draw: Draw) -> Sampled:
    params = draw.sampling
    logprobs = row - row.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    scores = row.copy()
    if params.bias_ids is not None and params.bias_values is not None:
        scores[params.bias_ids] += params.bias_values
    if draw.history is not None:
        seen = np.unique(draw.history)
        positive = scores[seen] > 0
        scores[seen] = np.where(
            positive,
            scores[seen] / params.repetition_penalty,
            scores[seen] * params.repetition_penalty,
        )
        output, counts = np.unique(draw.history[draw.n_prompt :], return_counts=True)
        scores[output] -= params.presence_penalty + params.frequency_penalty * counts
    if params.mask is not None:
        bits = np.unpackbits(params.mask.view(np.uint8), bitorder="little")[: len(scores)]
        scores[bits == 0] = -np.inf
    if draw.forced_token >= 0:
        token = draw.forced_token
    elif scores.max() == -np.inf:
        return Sampled(0, 0.0, error=NativeError("bias and mask allow no token", NO_TOKEN))
    elif params.temperature == 0:
        token = int(scores.argmax())
    else:
        scores -= scores.max()  # nothing overflows, however low the temperature
        with np.errstate(over="ignore"):  # what is that unlikely is never drawn
            scores /= max(params.temperature, float(np.finfo(scores.dtype).tiny))
        if 0 < params.top_k < len(scores):
            scores[scores < np.sort(scores)[-params.top_k]] = -np.inf
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        order = np.argsort(-weights, kind="stable")
        beyond = np.cumsum(weights[order]) - weights[order] >= params.top_p
        weights[order[beyond]] = 0
        weights[weights < params.min_p * weights.max()] = 0
        key = mix(params.seed ^ mix(params.choice * 0x10001 + draw.position))
        point = key / 2**64 * weights.sum()
        token = int(np.searchsorted(np.cumsum(weights), point, side="right"))
    top = params.top_ids
    if top is None:
        top = np.argsort(-logprobs, kind="stable")[: params.n_top_logprobs]
    return Sampled(
        token=token,
        logprob=float(logprobs[token]) if params.want_logprob else 0.0,
        top=[(int(t), float(logprobs[t])) for t in top],
    )
