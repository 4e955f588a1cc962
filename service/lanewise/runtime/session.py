"""A session: KV cache and worker threads; runs forward steps and draws tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakKeyDictionary, ref

import numpy as np

from lanewise.runtime.adapter import Adapter
from lanewise.runtime.library import native
from lanewise.runtime.model import Model, kv_type_id
from lanewise.runtime.sampling import (
    MAX_TOP_LOGPROBS,
    Draw,
    Floats,
    NativeSampling,
    Sampled,
    Sampling,
    Uint32s,
    columns,
)

BLOCK_TOKENS = 32  # LW_BLOCK_TOKENS; part of the numeric contract, checked when a session opens


@dataclass
class Batch:
    """One ragged batch; the fields are those of ``lw_batch``.

    Sequence ``s`` owns tokens ``query_start[s]`` up to ``query_start[s + 1]``; they follow the
    ``context_lens[s]`` tokens already in its blocks, which are listed by row ``table_rows[s]`` of
    ``block_tables``. An array of uint32 given there is read where it stands, not copied. Blocks
    that none of the tokens sees through a sliding window may be any number in it.
    """

    token_ids: Sequence[int] | Uint32s
    query_start: Sequence[int] | Uint32s
    context_lens: Sequence[int] | Uint32s
    block_tables: Sequence[Sequence[int]] | Uint32s
    logit_rows: Sequence[int] | Uint32s
    table_rows: Sequence[int] | None = None  # None: sequence s has row s
    adapters: Sequence[Adapter | None] | None = None  # of each sequence; None: nobody has one


@dataclass(frozen=True, slots=True)
class Counters:
    """Work done since the session was opened."""

    steps: int
    tokens: int
    gemv_calls: int
    gemm_calls: int
    gemv_rows: int
    gemm_rows: int
    native_seconds: float = 0.0  # inside forward steps, draws included, and copies of blocks
    held_seconds: float = 0.0  # of those, in which all but held draws was done


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


class Session:
    """The KV cache, workspace and threads of one model; used by one thread at a time.

    The arrays of a step are allocated once. Every pointer the library gets points into one of
    them or into an array that the caller's batch keeps alive for the call.
    """

    def __init__(
        self,
        model: Model,
        *,
        threads: int,
        blocks: int,
        max_batch_tokens: int,
        max_batch_logits: int,
        kv_type: str = "f16",
        max_adapter_rank: int = 0,
    ) -> None:
        self._native = native()
        ffi, lib = self._native.ffi, self._native.lib
        if (lib.LW_BLOCK_TOKENS, lib.LW_MAX_TOP_LOGPROBS) != (BLOCK_TOKENS, MAX_TOP_LOGPROBS):
            raise ValueError(f"the library's KV blocks hold {lib.LW_BLOCK_TOKENS} tokens")
        self._handle = ffi.NULL
        self.model = model
        self.blocks = blocks
        self._vocab = model.config.vocab_size
        self._logits = np.empty((max_batch_logits, self._vocab), np.float32)
        self._logits_pointer = ffi.from_buffer("float[]", self._logits, require_writable=True)
        self._batch = ffi.new("lw_batch*")
        # A struct does not own what its members point to; these objects do.
        self._inputs = {
            "token_ids": ffi.new("uint32_t[]", max_batch_tokens),
            "query_start": ffi.new("uint32_t[]", max_batch_tokens + 1),
            "context_lens": ffi.new("uint32_t[]", max_batch_tokens),
            "logit_rows": ffi.new("uint32_t[]", max_batch_logits),
            "table_rows": ffi.new("uint32_t[]", max_batch_tokens),
        }
        for name, pointer in self._inputs.items():
            setattr(self._batch, name, pointer)
        self._adapters = ffi.new("lw_adapter*[]", max_batch_tokens) if max_adapter_rank else None
        self._tables: Uint32s = np.empty((0, 0), np.uint32)  # those of the last batch
        self._tables_pointer: Any = None
        self._draws = ffi.new("lw_draw[]", max_batch_logits)
        self._drawn = ffi.new("lw_sampled[]", max_batch_logits)
        self._draw_columns = columns(
            ffi,
            self._draws,
            "lw_draw",
            position="u4",
            forced_token="i8",
            n_prompt="u4",
            n_history="u4",
        )
        self._drawn_columns = columns(
            ffi, self._drawn, "lw_sampled", token="u4", logprob="f4", n_top="u4"
        )
        # Whose sampling each of the draws points to: mostly that of the step before.
        self._filled: list[Callable[[], Sampling | None]] = [_nobody] * max_batch_logits
        self._counters = ffi.new("lw_counters*")
        self._samplings: WeakKeyDictionary[Sampling, NativeSampling] = WeakKeyDictionary()

        config = ffi.new("lw_session_config*")
        config.n_threads = threads
        config.n_blocks = blocks
        config.max_batch_tokens = max_batch_tokens
        config.max_batch_logits = max_batch_logits
        config.kv_type = kv_type_id(kv_type)
        config.max_adapter_rank = max_adapter_rank
        places = self._places(threads)  # a struct does not own what its members point to
        for name, values in places.items():
            setattr(config, name, values)
        out = ffi.new("lw_session**")
        self._native.check(lib.lw_session_open(model.handle, config, out))
        self._handle = out[0]
        model.opened(self)

    def _places(self, threads: int) -> dict[str, Any]:
        """The CPUs of threads and the copies of the weights that they read, where it matters."""
        placement = self.model.placement
        if placement is None:
            return {}
        places = {"cpus": placement.cpus, "copies": placement.copies}
        for values in places.values():
            if values and len(values) < threads:
                raise ValueError(
                    f"threads is {threads}; accepted: at most {len(values)}, for which the model"
                    " was placed"
                )
        new = self._native.ffi.new
        return {name: new("uint32_t[]", values) for name, values in places.items() if values}

    def step(self, batch: Batch) -> Floats:
        """Run the model over ``batch``; its logits [n_logits, vocab] hold until the next step."""
        self._run(batch, None)
        return self._logits[: len(batch.logit_rows)]

    def step_and_draw(self, batch: Batch, draws: Sequence[Draw]) -> list[Sampled]:
        """Run the model over ``batch`` and draw a token from each of its rows of logits."""
        if len(draws) != len(batch.logit_rows):
            raise ValueError(f"{len(draws)} draws for {len(batch.logit_rows)} rows of logits")
        self._run(batch, draws)
        token_ids, logprobs, n_tops = (one[: len(draws)].tolist() for one in self._drawn_columns)
        if not any(n_tops):
            return list(map(Sampled, token_ids, logprobs))
        tops = [
            tuple(zip(one.top_ids[0:n], one.top_logprobs[0:n], strict=True))
            for one, n in zip(self._drawn, n_tops, strict=False)
        ]
        return list(map(Sampled, token_ids, logprobs, tops))

    def hold_draws(self) -> None:
        """Let the next step wait before its draws until they are released.

        So the arrays of masks may be written while it runs.
        """
        self._native.check(self._native.lib.lw_session_hold_draws(self._open_handle()))

    def release_draws(self) -> None:
        """Take one hold back; any thread may."""
        self._native.check(self._native.lib.lw_session_release_draws(self._open_handle()))

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block of the KV cache to another, all layers of it."""
        lib = self._native.lib
        self._native.check(lib.lw_session_copy_block(self._open_handle(), source, target))

    def _run(self, batch: Batch, draws: Sequence[Draw] | None) -> None:
        if batch.block_tables is not self._tables:
            self._take_tables(batch.block_tables)
        self._copy_checked(batch)
        # A struct does not own what its members point to: these objects do, until the call is over.
        owners: list[Any] = []
        if draws is None:
            self._batch.draws = self._native.ffi.NULL
        else:
            self._batch.draws = self._draws
            self._take_draws(draws, owners)
        status = self._native.lib.lw_step(
            self._open_handle(), self._batch, self._logits_pointer, self._drawn
        )
        self._native.check(status)

    def _take_tables(self, given: Sequence[Sequence[int]] | Uint32s) -> None:
        tables = np.ascontiguousarray(given, dtype=np.uint32)
        if tables.ndim != 2:
            raise ValueError(
                f"block_tables has shape {tables.shape}; accepted: a row for each sequence"
            )
        self._tables = tables  # a list is never seen again, and a copy of it neither
        self._tables_pointer = self._native.ffi.from_buffer("uint32_t[]", tables)
        self._batch.block_tables = self._tables_pointer
        self._batch.block_table_stride = tables.shape[1]

    def _copy_checked(self, batch: Batch) -> None:
        """Copy the batch into the arrays the library reads.

        The library checks the values; only here is known how long the arrays are.
        """
        n_seqs, n_tokens = len(batch.context_lens), len(batch.token_ids)
        rows = range(n_seqs) if batch.table_rows is None else batch.table_rows
        if len(rows) != n_seqs:
            raise ValueError(f"table_rows has {len(rows)} entries for {n_seqs} sequences")
        if max(rows, default=0) >= len(self._tables):
            raise ValueError(
                f"block_tables has {len(self._tables)} rows; sequences have rows up to {max(rows)}"
            )
        if len(batch.query_start) != n_seqs + 1:
            raise ValueError(
                f"query_start has {len(batch.query_start)} entries for {n_seqs} sequences"
            )
        if batch.query_start[-1] != n_tokens:
            raise ValueError(f"query_start ends at {batch.query_start[-1]} for {n_tokens} tokens")
        self._batch.n_seqs = n_seqs
        self._batch.n_logits = len(batch.logit_rows)
        self._copy("token_ids", batch.token_ids)
        self._copy("query_start", batch.query_start)
        self._copy("context_lens", batch.context_lens)
        self._copy("logit_rows", batch.logit_rows)
        self._copy("table_rows", rows)
        if batch.adapters is not None or self._batch.adapters:
            self._take_adapters(batch.adapters, n_seqs)

    def _take_adapters(self, adapters: Sequence[Adapter | None] | None, n_seqs: int) -> None:
        null = self._native.ffi.NULL
        if adapters is None:
            self._batch.adapters = null
            return
        if self._adapters is None:
            raise ValueError("the session takes no adapters: max_adapter_rank is 0")
        if len(adapters) != n_seqs:
            raise ValueError(f"adapters has {len(adapters)} entries for {n_seqs} sequences")
        for i, adapter in enumerate(adapters):
            self._adapters[i] = null if adapter is None else adapter.handle
        self._batch.adapters = self._adapters

    def _copy(self, name: str, values: Sequence[int] | Uint32s) -> None:
        target = self._inputs[name]
        if len(values) > len(target):
            raise ValueError(f"{name} has {len(values)} entries; the session takes {len(target)}")
        target[0 : len(values)] = values

    def _take_draws(self, draws: Sequence[Draw], owners: list[Any]) -> None:
        places = slice(len(draws))
        positions, forced_tokens, *histories = self._draw_columns
        positions[places] = [draw.position for draw in draws]
        forced_tokens[places] = [draw.forced_token for draw in draws]
        for sizes in histories:
            sizes[places] = 0
        for place, draw in enumerate(draws):
            if self._filled[place]() is not draw.sampling:  # its sequence had another place before
                self._take_sampling(place, draw.sampling)
            if draw.history is not None:
                owners.append(self._take_history(place, draw.history, draw.n_prompt))

    def _take_sampling(self, place: int, given: Sampling) -> None:
        sampling = self._samplings.get(given)
        if sampling is None:
            sampling = NativeSampling(self._native.ffi, given, self._vocab)
            self._samplings[given] = sampling
        self._draws[place].sampling = sampling.struct
        self._filled[place] = ref(given)

    def _take_history(self, place: int, given: Uint32s, n_prompt: int) -> Any:
        """Let a draw see what came before it; what is returned must live as long."""
        if n_prompt > len(given):
            raise ValueError(f"n_prompt is {n_prompt}; history has {len(given)} entries")
        struct = self._draws[place]
        history = np.ascontiguousarray(given, dtype=np.uint32)
        struct.n_prompt, struct.n_history = n_prompt, len(history)
        struct.history = owner = self._native.ffi.from_buffer("uint32_t[]", history)
        return owner

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
        )

    def start_profile(self) -> None:
        """Measure where the time goes from now on, from zero."""
        self._native.check(self._native.lib.lw_session_profile(self._open_handle(), 1))

    def stop_profile(self) -> list[OperationTime]:
        """What was measured since ``start_profile``, in the order operations run."""
        ffi, lib = self._native.ffi, self._native.lib
        count = ffi.new("uint32_t*")
        self._native.check(lib.lw_session_profile_rows(self._open_handle(), ffi.NULL, 0, count))
        rows = ffi.new("lw_profile_row[]", count[0])
        self._native.check(lib.lw_session_profile_rows(self._handle, rows, count[0], count))
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

    def _open_handle(self) -> Any:
        if self._handle == self._native.ffi.NULL:
            raise ValueError("the session is closed")
        return self._handle

    def close(self) -> None:
        """Stop the threads and free the cache; closing twice is harmless."""
        handle, self._handle = self._handle, self._native.ffi.NULL
        self._native.lib.lw_session_close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _nobody() -> None:
    """Stands for a reference to a sampling that is gone."""
