"""A session: KV cache and worker threads; runs forward steps and draws tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lanewise.runtime.library import native
from lanewise.runtime.model import Model, kv_type_id

BLOCK_TOKENS = 32  # LW_BLOCK_TOKENS; part of the numeric contract, checked when a session opens
MAX_TOP_LOGPROBS = 20

Uint32s = NDArray[np.uint32]
Floats = NDArray[np.float32]


@dataclass
class Batch:
    """One ragged batch; the fields are those of ``lw_batch``.

    Sequence ``s`` owns tokens ``query_start[s]`` up to ``query_start[s + 1]``; they follow the
    ``context_lens[s]`` tokens already in its blocks, which row ``s`` of ``block_tables`` lists.
    """

    token_ids: Sequence[int] | Uint32s
    query_start: Sequence[int] | Uint32s
    context_lens: Sequence[int] | Uint32s
    block_tables: Sequence[Sequence[int]] | Uint32s
    logit_rows: Sequence[int] | Uint32s


@dataclass(slots=True)
class Sampling:
    """How to draw one token; the fields are those of ``lw_sampling``.

    ``history`` holds the prompt (the first ``n_prompt`` entries) and the output, and is only read
    by penalties; ``mask`` holds one bit for each token of the vocabulary.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n_prompt: int = 0
    history: Uint32s | None = None
    bias_ids: Uint32s | None = None
    bias_values: Floats | None = None
    mask: Uint32s | None = None
    seed: int = 0
    choice: int = 0
    position: int = 0
    forced_token: int = -1
    n_top_logprobs: int = 0
    want_logprob: bool = False


@dataclass(slots=True)
class Sampled:
    """One token drawn; ``logprob`` and ``top`` (id, logprob) are filled when asked for."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Counters:
    """Work done since the session was opened."""

    steps: int
    tokens: int
    gemv_calls: int
    gemm_calls: int
    gemv_rows: int
    gemm_rows: int
    native_seconds: float = 0.0  # inside forward steps and draws


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
    ) -> None:
        self._native = native()
        ffi, lib = self._native.ffi, self._native.lib
        if (lib.LW_BLOCK_TOKENS, lib.LW_MAX_TOP_LOGPROBS) != (BLOCK_TOKENS, MAX_TOP_LOGPROBS):
            raise ValueError(f"the library's KV blocks hold {lib.LW_BLOCK_TOKENS} tokens")
        self._handle = ffi.NULL
        self.model = model
        self.blocks = blocks
        self._vocab = model.config.vocab_size
        self._token_ids = np.empty(max_batch_tokens, np.uint32)
        self._query_start = np.empty(max_batch_tokens + 1, np.uint32)
        self._context_lens = np.empty(max_batch_tokens, np.uint32)
        self._logit_rows = np.empty(max_batch_logits, np.uint32)
        self._logits = np.empty((max_batch_logits, self._vocab), np.float32)
        self._logits_pointer = ffi.from_buffer("float[]", self._logits, require_writable=True)
        self._batch = ffi.new("lw_batch*")
        # A struct does not own what its members point to; these cdata objects do.
        self._inputs = {
            name: ffi.from_buffer("uint32_t[]", getattr(self, f"_{name}"))
            for name in ("token_ids", "query_start", "context_lens", "logit_rows")
        }
        for name, pointer in self._inputs.items():
            setattr(self._batch, name, pointer)
        self._params = ffi.new("lw_sampling[]", 1)
        self._sampled = ffi.new("lw_sampled[]", 1)

        config = ffi.new("lw_session_config*")
        config.n_threads = threads
        config.n_blocks = blocks
        config.max_batch_tokens = max_batch_tokens
        config.max_batch_logits = max_batch_logits
        config.kv_type = kv_type_id(kv_type)
        out = ffi.new("lw_session**")
        self._native.check(lib.lw_session_open(model.handle, config, out))
        self._handle = out[0]
        model.opened(self)

    def step(self, batch: Batch) -> Floats:
        """Run the model over ``batch``; its logits [n_logits, vocab] hold until the next step."""
        tables = np.ascontiguousarray(batch.block_tables, dtype=np.uint32)
        n_seqs, n_logits = len(batch.context_lens), len(batch.logit_rows)
        self._copy_checked(batch, n_seqs, tables.shape)
        struct = self._batch
        struct.n_seqs = n_seqs
        struct.n_logits = n_logits
        struct.block_table_stride = tables.shape[1]
        with self._native.ffi.from_buffer("uint32_t[]", tables) as pointer:
            struct.block_tables = pointer
            status = self._native.lib.lw_step(self._open_handle(), struct, self._logits_pointer)
        self._native.check(status)
        return self._logits[:n_logits]

    def _copy_checked(self, batch: Batch, n_seqs: int, shape: tuple[int, ...]) -> None:
        """Copy the batch into the arrays the library reads.

        The library checks the values; only here is known how long the arrays are.
        """
        if len(shape) != 2 or shape[0] != n_seqs:
            raise ValueError(
                f"block_tables has shape {shape}; accepted: one row for each of {n_seqs}"
            )
        if len(batch.query_start) != n_seqs + 1:
            raise ValueError(
                f"query_start has {len(batch.query_start)} entries for {n_seqs} sequences"
            )
        if batch.query_start[-1] != len(batch.token_ids):
            raise ValueError(
                f"query_start ends at {batch.query_start[-1]} for {len(batch.token_ids)} tokens"
            )
        for name, target in (
            ("token_ids", self._token_ids),
            ("query_start", self._query_start),
            ("context_lens", self._context_lens),
            ("logit_rows", self._logit_rows),
        ):
            values = getattr(batch, name)
            if len(values) > len(target):
                raise ValueError(
                    f"{name} has {len(values)} entries; the session takes {len(target)}"
                )
            target[: len(values)] = values

    def sample(self, logits: Floats, params: Sequence[Sampling]) -> list[Sampled]:
        """Draw one token for each row of ``logits`` with the parameters at the same place."""
        ffi = self._native.ffi
        if logits.shape != (len(params), self._vocab):
            raise ValueError(
                f"logits have shape {logits.shape}; accepted: ({len(params)}, {self._vocab})"
            )
        if len(params) > len(self._params):
            self._params = ffi.new("lw_sampling[]", len(params))
            self._sampled = ffi.new("lw_sampled[]", len(params))
        # Structs do not own what they point to: the cdata objects here do, until the call is over.
        owners: list[Any] = []
        for i, row in enumerate(params):
            self._fill(self._params[i], row, owners)
        rows = np.ascontiguousarray(logits, dtype=np.float32)
        with ffi.from_buffer("float[]", rows) as pointer:
            status = self._native.lib.lw_sample(
                self._open_handle(), pointer, len(params), self._params, self._sampled
            )
        self._native.check(status)
        return [self._result(self._sampled[i]) for i in range(len(params))]

    def _fill(self, struct: Any, row: Sampling, owners: list[Any]) -> None:
        struct.temperature = row.temperature
        struct.top_p = row.top_p
        struct.min_p = row.min_p
        struct.top_k = row.top_k
        struct.repetition_penalty = row.repetition_penalty
        struct.presence_penalty = row.presence_penalty
        struct.frequency_penalty = row.frequency_penalty
        struct.n_prompt = row.n_prompt
        struct.n_history, struct.history = self._borrow("uint32_t[]", row.history, owners)
        n_values, struct.bias_values = self._borrow("float[]", row.bias_values, owners)
        struct.n_bias, struct.bias_ids = self._borrow("uint32_t[]", row.bias_ids, owners)
        if n_values != struct.n_bias:
            raise ValueError(f"bias_ids has {struct.n_bias} entries, bias_values {n_values}")
        if row.n_prompt > struct.n_history and row.history is not None:
            raise ValueError(f"n_prompt is {row.n_prompt}; history has {struct.n_history} entries")
        words, struct.mask = self._borrow("uint32_t[]", row.mask, owners)
        if row.mask is not None and words * 32 < self._vocab:
            raise ValueError(
                f"mask has {words} words; accepted: a bit for each of {self._vocab} tokens"
            )
        struct.seed = row.seed & 0xFFFF_FFFF_FFFF_FFFF
        struct.choice = row.choice
        struct.position = row.position
        struct.forced_token = row.forced_token
        struct.n_top_logprobs = row.n_top_logprobs
        struct.want_logprob = row.want_logprob

    def _borrow(self, kind: str, array: NDArray[Any] | None, owners: list[Any]) -> tuple[int, Any]:
        ffi = self._native.ffi
        if array is None or len(array) == 0:
            return 0, ffi.NULL
        dtype = np.float32 if kind == "float[]" else np.uint32
        pointer = ffi.from_buffer(kind, np.ascontiguousarray(array, dtype=dtype))
        owners.append(pointer)
        return len(array), pointer

    def _result(self, struct: Any) -> Sampled:
        top = [(struct.top_ids[i], struct.top_logprobs[i]) for i in range(struct.n_top)]
        return Sampled(token=struct.token, logprob=struct.logprob, top=top)

    def counters(self) -> Counters:
        """Steps, tokens and matrix products so far."""
        out = self._native.ffi.new("lw_counters*")
        self._native.check(self._native.lib.lw_session_counters(self._open_handle(), out))
        return Counters(
            steps=out.steps,
            tokens=out.tokens,
            gemv_calls=out.gemv_calls,
            gemm_calls=out.gemm_calls,
            gemv_rows=out.gemv_rows,
            gemm_rows=out.gemm_rows,
            native_seconds=out.native_seconds,
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
