"""A session: KV cache and worker threads; runs forward steps and draws tokens."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lanewise.native.library import NativeError
from lanewise.runtime.model import Model
from lanewise.runtime.native_session import NativeSession
from lanewise.runtime.sampling import (
    MAX_TOP_LOGPROBS,
    Draw,
    Floats,
    NativeSampling,
    Sampled,
    Sampling,
)
from lanewise.runtime.step_arrays import ArrayLimits, Batch, StepArrays

BLOCK_TOKENS = 32  # LW_BLOCK_TOKENS; part of the numeric contract, checked when a session opens
EXPERT_ROWS = (1, 2, 4, 8, 16, 32, 64)  # most rows of each class of experts but the last
NO_EXPERTS = (0,) * (len(EXPERT_ROWS) + 1)
DRAWN_BEFORE = 1 << 30  # LW_DRAWN_BEFORE; checked likewise


@dataclass(frozen=True, slots=True)
class Counters:
    """Work done since the session was opened."""

    steps: int
    tokens: int
    gemv_calls: int
    gemm_calls: int
    gemv_rows: int
    gemm_rows: int
    native_seconds: float = 0.0  # inside forward steps, draws included
    held_seconds: float = 0.0  # of those, in which all but held draws was done
    # Experts that a layer's rows have chosen in a step, by how many rows each had (EXPERT_ROWS).
    experts_by_rows: tuple[int, ...] = NO_EXPERTS
    expert_rows: int = 0  # of all of them


@dataclass(frozen=True, slots=True)
class OperationTime:
    """Where steps and draws spent their time: one operation on one row of the kernel table.

    Seconds are of all threads together; ``wait_seconds`` passed at the barrier after the operation.
    ``bytes`` counts operands and results once per step, whichever cache holds them.
    """

    operation: str
    kernel: str  # "" for all but matrix products
    work_seconds: float
    wait_seconds: float
    bytes: int
    macs: int


@dataclass(frozen=True, slots=True)
class InputStats:
    """The inputs of the matrices of one product, over all rows since the session was opened.

    Sizes are absolute values; a group is up to 32 inputs of one row.
    """

    operation: str  # qkv, attn_output, gate_up, down; head
    layer: int  # 0 for the head
    values: int
    mean: float  # of the sizes
    largest: float
    largest_input: int
    groups: int
    outlier_groups: int  # in which one size is more than 8 times every other


class StepRefusedError(NativeError):
    """Nothing of a step was done: its blocks were not copied either."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a step that was begun ahead drew, and when it ran: seconds, as ``perf_counter`` has."""

    drawn: list[Sampled]
    began: float
    ended: float


class Session(NativeSession):
    """The KV cache, workspace and threads of one model; used by one thread at a time."""

    def __init__(
        self,
        model: Model,
        *,
        threads: int,
        blocks: int,
        max_batch_tokens: int,
        max_batch_logits: int,
        kv_type: str = "f16",
        groups_by_window: bool = False,
        states: int = 1,
        max_guesses: int = 0,
        max_adapter_rank: int = 0,
        float_activations: bool = False,
        observe_inputs: bool = False,
    ) -> None:
        """Open one; with ``groups_by_window`` layers of different windows have their own blocks.

        ``Model.kv_layout`` says which. ``states`` are the places for the states of sequences, one
        for each row of block tables at least; none where no layer of the model keeps a state, which
        ``max_guesses`` is for too: those that one sequence may have in one step. With
        ``float_activations`` it is a slow reference: its
        quantized matrices multiply activations themselves, not int8 codes of them. With
        ``observe_inputs``, ``inputs`` tells how large those are.
        """
        super().__init__(model)
        ffi, lib = self._native.ffi, self._native.lib
        if (lib.LW_BLOCK_TOKENS, lib.LW_MAX_TOP_LOGPROBS) != (BLOCK_TOKENS, MAX_TOP_LOGPROBS):
            raise ValueError(f"the library's KV blocks hold {lib.LW_BLOCK_TOKENS} tokens")
        if lib.LW_DRAWN_BEFORE != DRAWN_BEFORE:
            raise ValueError(f"the library's drawn tokens begin at {lib.LW_DRAWN_BEFORE}")
        self.blocks, self.context_length = blocks, model.config.context_length
        self.has_states = model.config.has_states
        self._vocab = model.config.vocab_size
        self._logits = np.empty((max_batch_logits, self._vocab), np.float32)
        self._logits_pointer = ffi.from_buffer("float[]", self._logits, require_writable=True)
        self._samplings: WeakKeyDictionary[Sampling, NativeSampling] = WeakKeyDictionary()
        layout = model.kv_layout(kv_type, groups_by_window)
        self.groups = len(layout.windows)
        limits = ArrayLimits(
            tokens=max_batch_tokens,
            logits=max_batch_logits,
            vocab=model.config.vocab_size,
            hidden=model.config.hidden_size * (1 + model.config.n_taps),
            groups=self.groups,
            has_states=layout.state_bytes > 0,
            has_adapters=max_adapter_rank > 0,
        )
        # In turns, those of the next step first.
        self._arrays = [StepArrays(ffi, limits, self._samplings) for _ in range(lib.LW_STEPS_AHEAD)]
        self._started: deque[int] = deque()  # draws of the steps that are not finished
        self._counters = ffi.new("lw_counters*")
        self._done, self._times = ffi.new("uint32_t*"), ffi.new("lw_finished*")

        self._open(
            threads=threads,
            kv_type=kv_type,
            n_blocks=blocks,
            n_states=states if layout.state_bytes else 0,
            max_guesses=max_guesses if layout.state_bytes else 0,
            max_batch_tokens=max_batch_tokens,
            max_batch_logits=max_batch_logits,
            groups_by_window=groups_by_window,
            max_adapter_rank=max_adapter_rank,
            float_activations=float_activations,
            observe_inputs=observe_inputs,
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the KV cache."""
        return int(self._native.lib.lw_session_block_bytes(self._open_handle()))

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of one sequence, without guesses; 0 where nothing keeps one."""
        return int(self._native.lib.lw_session_state_bytes(self._open_handle()))

    def read_block(self, block: int, into: bytearray) -> None:
        """Copy a block of the KV cache to ``into``, of ``block_bytes``.

        Any thread may call this and the next three, during steps that do not write the block or
        the state.
        """
        self._copy(self._native.lib.lw_session_read_block, block, into, self.block_bytes)

    def write_block(self, block: int, data: bytearray) -> None:
        """Copy ``data`` to a block of the KV cache, of which no step reads anything meanwhile."""
        self._copy(self._native.lib.lw_session_write_block, block, data, self.block_bytes)

    def read_state(self, place: int, into: bytearray) -> None:
        """Copy the state in a place to ``into``, of ``state_bytes``; its guesses are left out."""
        self._copy(self._native.lib.lw_session_read_state, place, into, self.state_bytes)

    def write_state(self, place: int, data: bytearray) -> None:
        """Copy ``data`` to a place for a state that no step uses meanwhile."""
        self._copy(self._native.lib.lw_session_write_state, place, data, self.state_bytes)

    def _copy(self, copy: Callable[..., int], place: int, data: bytearray, n_bytes: int) -> None:
        if len(data) != n_bytes:
            raise ValueError(f"{len(data)} bytes; accepted: {n_bytes}")
        with self._native.ffi.from_buffer(data) as pointer:
            self._native.check(copy(self._open_handle(), place, pointer))

    def limit_threads(self, threads: int, max_rows: int, max_context: int) -> None:
        """Let steps of so few tokens behind so few others run on fewer threads."""
        self._native.check(
            self._native.lib.lw_session_limit_threads(
                self._open_handle(), threads, max_rows, max_context
            )
        )

    def step(self, batch: Batch) -> Floats:
        """Run the model over ``batch``; its logits [n_logits, vocab] hold until the next step."""
        self._run(batch, None)
        return self._logits[: len(batch.logit_rows)]

    def step_and_draw(self, batch: Batch, draws: Sequence[Draw]) -> list[Sampled]:
        """Run the model over ``batch`` and draw a token from each of its rows of logits.

        Of those some may have failed (``Sampled``), which is no error of the step.
        StepRefusedError if nothing was done; after any other error its blocks have been copied.
        """
        self._run(batch, draws)
        return self._arrays[0].results(len(draws))

    def _run(self, batch: Batch, draws: Sequence[Draw] | None) -> None:
        arrays = self._written(batch, draws)
        status = self._native.lib.lw_step(
            self._open_handle(), arrays.batch, self._logits_pointer, arrays.drawn
        )
        self._check_step(status)

    def start(self, batch: Batch, draws: Sequence[Draw]) -> None:
        """Begin a step as ``step_and_draw`` would, behind those begun before.

        Its block tables stay as they are, for what it reads of them, until it is finished. Two
        steps at most are begun and not finished, and nothing else is run meanwhile. After an error
        nothing was begun.
        """
        arrays = self._written(batch, draws)
        status = self._native.lib.lw_session_start(
            self._open_handle(), arrays.batch, self._logits_pointer, arrays.drawn
        )
        self._check_step(status)
        self._arrays.append(self._arrays.pop(0))
        self._started.append(len(draws))

    def wait(self, seconds: float) -> bool:
        """Wait for the first step begun, but not longer; returns whether it has been run."""
        done = self._done
        wait = self._native.lib.lw_session_await
        self._native.check(wait(self._open_handle(), int(1e9 * max(0.0, seconds)), done))
        return bool(done[0])

    def finish(self) -> Finished:
        """What the first step begun has drawn, once it has been run.

        Errors are those of ``step_and_draw``: behind a step that failed, nothing is done.
        """
        times = self._times
        arrays = self._arrays[-len(self._started)] if self._started else self._arrays[0]
        status = self._native.lib.lw_session_finish(self._open_handle(), times)
        count = self._started.popleft() if self._started else 0
        self._check_step(status)
        return Finished(arrays.results(count), 1e-9 * times.begin_ns, 1e-9 * times.end_ns)

    def _written(self, batch: Batch, draws: Sequence[Draw] | None) -> StepArrays:
        """The arrays of the next step, with this one in them."""
        arrays = self._arrays[0]
        try:
            arrays.write(batch, draws)
        except Exception as error:
            raise StepRefusedError(str(error), self._native.lib.LW_ERR_ARGUMENT) from error
        return arrays

    def _check_step(self, status: int) -> None:
        try:
            self._native.check(status)
        except NativeError as error:
            if status == self._native.lib.LW_ERR_ARGUMENT:
                raise StepRefusedError(str(error), status) from error
            raise

    def hold_draws(self) -> None:
        """Let the next step wait before its draws until they are released.

        So the arrays of masks may be written while it runs.
        """
        self._native.check(self._native.lib.lw_session_hold_draws(self._open_handle()))

    def release_draws(self) -> None:
        """Take one hold back; any thread may."""
        self._native.check(self._native.lib.lw_session_release_draws(self._open_handle()))

    def counters(self) -> Counters:
        """Steps, tokens and matrix products so far."""
        out = self._counters
        self._native.check(self._native.lib.lw_session_counters(self._open_handle(), out))
        return Counters(
            steps=out.steps,
            tokens=out.tokens,
            gemv_calls=out.gemv_calls,
            gemm_calls=out.gemm_calls,
            gemv_rows=out.gemv_rows,
            gemm_rows=out.gemm_rows,
            native_seconds=out.native_seconds,
            held_seconds=out.held_seconds,
            experts_by_rows=tuple(out.experts_by_rows) if out.expert_rows else NO_EXPERTS,
            expert_rows=out.expert_rows,
        )

    def _rows_of(self, kind: str, write: Callable[..., int]) -> Any:
        """All rows that a function of the library writes, which also says how many there are."""
        count = self._native.ffi.new("uint32_t*")
        self._native.check(write(self._open_handle(), self._native.ffi.NULL, 0, count))
        rows = self._native.ffi.new(kind, count[0])
        self._native.check(write(self._handle, rows, count[0], count))
        return rows

    def start_profile(self) -> None:
        """Measure where the time goes from now on, from zero."""
        self._native.check(self._native.lib.lw_session_profile(self._open_handle(), 1))

    def stop_profile(self) -> list[OperationTime]:
        """What was measured since ``start_profile``, in the order operations run."""
        lib = self._native.lib
        rows = self._rows_of("lw_profile_row[]", lib.lw_session_profile_rows)
        self._native.check(lib.lw_session_profile(self._handle, 0))
        return [
            OperationTime(
                operation=self._native.text(row.operation),
                kernel=self._native.text(row.kernel),
                work_seconds=row.work_seconds,
                wait_seconds=row.wait_seconds,
                bytes=row.bytes,
                macs=row.macs,
            )
            for row in rows
        ]

    def inputs(self) -> list[InputStats]:
        """What a session that observes inputs has seen: four for each layer, and the head."""
        rows = self._rows_of("lw_input_stats[]", self._native.lib.lw_session_inputs)
        return [
            InputStats(
                operation=self._native.text(row.operation),
                layer=row.layer,
                values=row.values,
                mean=row.total / row.values if row.values else 0.0,
                largest=row.largest,
                largest_input=row.largest_input,
                groups=row.groups,
                outlier_groups=row.outlier_groups,
            )
            for row in rows
        ]
