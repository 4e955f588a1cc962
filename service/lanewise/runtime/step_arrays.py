"""The arrays through which one step goes to the library and what it drew comes back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from itertools import count as count_from
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from lanewise.runtime.adapter import Adapter
from lanewise.runtime.sampling import (
    Draw,
    Floats,
    NativeSampling,
    Sampled,
    Sampling,
    Uint32s,
    columns,
    draw_error,
)

RUN_MODEL, RUN_HEAD, RUN_HEAD_AGAIN = 0, 1, 2  # lw_runs
AXES = 3  # LW_AXES


@dataclass
class Batch:
    """One ragged batch; the fields are those of ``lw_batch``.

    Sequence ``s`` owns tokens ``query_start[s]`` up to ``query_start[s + 1]``; they follow the
    ``context_lens[s]`` tokens already in its blocks, which are listed by row ``table_rows[s]`` of
    ``block_tables``, for each group of layers; the groups' dimension may be left out where there is
    one. An array of uint32 given there is read where it stands, not copied. Blocks that none of the
    tokens sees through the window of their group may be any number in it. A token may be
    ``DRAWN_BEFORE + i``: what draw ``i`` of the step before gives.

    Where layers keep a state, that of sequence ``s`` is in place ``table_rows[s]``; what was there
    does not matter to one without context. There its last ``guesses[s]`` tokens leave the state as
    it is, which remembers them, and the first ``accepted[s]`` of those that it remembers, which its
    context counts, come into it. Without states guesses are tokens like others.
    """

    token_ids: Sequence[int] | Uint32s
    query_start: Sequence[int] | Uint32s
    context_lens: Sequence[int] | Uint32s
    block_tables: Sequence[Sequence[int]] | Uint32s  # [rows][groups][blocks]
    logit_rows: Sequence[int] | Uint32s
    table_rows: Sequence[int] | None = None  # None: sequence s has row s
    adapters: Sequence[Adapter | None] | None = None  # of each sequence; None: none has one
    block_copies: Sequence[tuple[int, int]] = ()  # KV blocks (from, to), copied first, in order
    state_copies: Sequence[tuple[int, int]] = ()  # places of states (from, to), as ``block_copies``
    guesses: Sequence[int] | None = None  # of each sequence; None: none has any
    accepted: Sequence[int] | None = None  # of each sequence; None: none has any
    # (token, rows [n, hidden_size] of float32): they stand for the embeddings of n tokens from that
    # one of the batch on; the ids of these count for per-layer values only.
    rows: Sequence[tuple[int, Floats]] = ()
    # [LW_AXES][tokens] positions for RoPE; None: each token's index in its sequence, on all axes.
    positions: Uint32s | None = None
    # Of each token how many of its sequence's first ones it sees in layers that see ahead; 0: those
    # up to itself, else all those are in the batch or the cache. None: all are 0.
    sees: Sequence[int] | Uint32s | None = None
    runs: int = 0  # RUN_MODEL, or of a model with a prediction head RUN_HEAD or RUN_HEAD_AGAIN
    skips_head: bool = False  # nothing is kept of the tokens for a head that guesses blocks


@dataclass(frozen=True, slots=True)
class ArrayLimits:
    """How large the arrays are."""

    tokens: int
    logits: int
    vocab: int
    hidden: int  # values of a row that stands for an embedding
    groups: int  # of layers, each with its blocks
    has_states: bool
    has_adapters: bool


class StepArrays:
    """What the library reads and writes of one step.

    The arrays are allocated once. Every pointer the library gets points into one of them or into
    an array that the caller's batch keeps alive until the step has been run.
    """

    def __init__(
        self,
        ffi: Any,
        limits: ArrayLimits,
        samplings: WeakKeyDictionary[Sampling, NativeSampling],
    ) -> None:
        self._ffi = ffi
        self._vocab, self._hidden = limits.vocab, limits.hidden
        self._n_tokens = limits.tokens
        self._rows: npt.NDArray[np.uintp] | None = None  # where the rows of tokens are; 0: nowhere
        self._n_groups = limits.groups
        self._has_states = limits.has_states
        self._samplings = samplings  # shared by all steps of a session
        self.batch = ffi.new("lw_batch*")
        self.drawn = ffi.new("lw_sampled[]", limits.logits)
        # A struct does not own what its members point to; these objects do.
        self._inputs = {
            "token_ids": ffi.new("uint32_t[]", limits.tokens),
            "query_start": ffi.new("uint32_t[]", limits.tokens + 1),
            "context_lens": ffi.new("uint32_t[]", limits.tokens),
            "logit_rows": ffi.new("uint32_t[]", limits.logits),
            "table_rows": ffi.new("uint32_t[]", limits.tokens),
            "guesses": ffi.new("uint32_t[]", limits.tokens),
            "accepted": ffi.new("uint32_t[]", limits.tokens),
        }
        for name, pointer in self._inputs.items():
            setattr(self.batch, name, pointer)
        self._adapters = ffi.new("lw_adapter*[]", limits.tokens) if limits.has_adapters else None
        self._tables: Uint32s = np.empty((0, 0), np.uint32)  # of the last batch
        self._tables_pointer: Any = None
        self._draws = ffi.new("lw_draw[]", limits.logits)
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
            ffi, self.drawn, "lw_sampled", status="u4", token="u4", logprob="f4", n_top="u4"
        )
        # The sampling that each draw points to: mostly the same as in the step before.
        self._filled: list[Callable[[], Sampling | None]] = [_nobody] * limits.logits
        self._owners: list[Any] = []  # of what the library reads until the step has been run

    def write(self, batch: Batch, draws: Sequence[Draw] | None) -> None:
        """Write a batch and its draws, if there are any."""
        if batch.block_tables is not self._tables:
            self._write_tables(batch.block_tables)
        self._owners = [draws]
        self._copy_checked(batch)
        self.batch.n_block_copies = len(batch.block_copies)
        if batch.block_copies:
            copies = self._ffi.new("uint32_t[]", list(chain(*batch.block_copies)))
            self.batch.block_copies = copies
            self._owners.append(copies)
        if self._has_states:
            self._write_state_copies(batch.state_copies)
        elif batch.state_copies:
            raise ValueError("state_copies are given; no layer of the model keeps a state")
        if draws is None:
            self.batch.draws = self._ffi.NULL
            return
        if len(draws) != len(batch.logit_rows):
            raise ValueError(f"{len(draws)} draws for {len(batch.logit_rows)} rows of logits")
        self.batch.draws = self._draws
        self._write_draws(draws)

    def _write_state_copies(self, copies: Sequence[tuple[int, int]]) -> None:
        self.batch.n_state_copies = len(copies)
        if copies:
            array = self._ffi.new("uint32_t[]", list(chain(*copies)))
            self.batch.state_copies = array
            self._owners.append(array)

    def results(self, count: int) -> list[Sampled]:
        """The first ``count`` tokens that the step drew, once it has been run."""
        self._owners = []
        statuses, token_ids, logprobs, n_tops = (
            one[:count].tolist() for one in self._drawn_columns
        )
        if not any(n_tops) and not any(statuses):
            return list(map(Sampled, token_ids, logprobs))
        tops = [
            tuple(zip(one.top_ids[0:n], one.top_logprobs[0:n], strict=True))
            for one, n in zip(self.drawn, n_tops, strict=False)
        ]
        errors = map(draw_error, count_from(), statuses)
        return list(map(Sampled, token_ids, logprobs, tops, errors))

    def _write_tables(self, given: Sequence[Sequence[int]] | Uint32s) -> None:
        tables = np.ascontiguousarray(given, dtype=np.uint32)
        groups = 1 if tables.ndim == 2 else tables.shape[1] if tables.ndim == 3 else 0
        if groups != self._n_groups:
            raise ValueError(
                f"block_tables has shape {tables.shape}; accepted: a row for each sequence, in it "
                f"one for each group of layers, of which there are {self._n_groups}"
            )
        self._tables = tables  # a list is never seen again, and a copy of it neither
        self._tables_pointer = self._ffi.from_buffer("uint32_t[]", tables)
        self.batch.block_tables = self._tables_pointer
        self.batch.block_table_stride = tables.shape[-1]

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
        self.batch.n_seqs = n_seqs
        self.batch.runs, self.batch.skips_head = batch.runs, batch.skips_head
        self.batch.n_logits = len(batch.logit_rows)
        self._copy("token_ids", batch.token_ids)
        self._copy("query_start", batch.query_start)
        self._copy("context_lens", batch.context_lens)
        self._copy("logit_rows", batch.logit_rows)
        self._copy("table_rows", rows)
        self._write_rows(batch.rows, n_tokens)
        self._write_array("positions", batch.positions, (AXES, n_tokens))
        self._write_array("sees", batch.sees, (n_tokens,))
        self._write_guesses("guesses", batch.guesses, n_seqs)
        self._write_guesses("accepted", batch.accepted, n_seqs)
        if batch.adapters is not None or self.batch.adapters:
            self._write_adapters(batch.adapters, n_seqs)

    def _write_rows(self, given: Sequence[tuple[int, Floats]], n_tokens: int) -> None:
        if not given:
            self.batch.rows = self._ffi.NULL
            return
        if self._rows is None:
            self._rows = np.zeros(self._n_tokens, np.uintp)
        places = self._rows
        places[:] = 0
        for first, array in given:
            rows = np.ascontiguousarray(array, np.float32)
            if rows.ndim != 2 or rows.shape[1] != self._hidden or first < 0:
                raise ValueError(
                    f"rows from token {first} on have shape {rows.shape}; accepted: rows of"
                    f" {self._hidden}"
                )
            if first + len(rows) > n_tokens:
                raise ValueError(f"{len(rows)} rows from token {first} on, of {n_tokens} tokens")
            places[first : first + len(rows)] = rows.ctypes.data + rows.strides[0] * np.arange(
                len(rows), dtype=np.uintp
            )
            self._owners.append(rows)
        pointers = self._ffi.from_buffer(places)
        self._owners.append(pointers)
        self.batch.rows = self._ffi.cast("const float* const*", pointers)

    def _write_array(self, name: str, given: Any, shape: tuple[int, ...]) -> None:
        if given is None:
            setattr(self.batch, name, self._ffi.NULL)
            return
        array = np.ascontiguousarray(given, np.uint32)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}; accepted: {shape}")
        pointer = self._ffi.from_buffer("uint32_t[]", array)
        self._owners.append(pointer)
        setattr(self.batch, name, pointer)

    def _write_guesses(self, name: str, counts: Sequence[int] | None, n_seqs: int) -> None:
        if counts is None or not self._has_states:
            setattr(self.batch, name, self._ffi.NULL)
            return
        if len(counts) != n_seqs:
            raise ValueError(f"{name} has {len(counts)} entries for {n_seqs} sequences")
        self._copy(name, counts)
        setattr(self.batch, name, self._inputs[name])

    def _write_adapters(self, adapters: Sequence[Adapter | None] | None, n_seqs: int) -> None:
        null = self._ffi.NULL
        if adapters is None:
            self.batch.adapters = null
            return
        if self._adapters is None:
            raise ValueError("the session takes no adapters: max_adapter_rank is 0")
        if len(adapters) != n_seqs:
            raise ValueError(f"adapters has {len(adapters)} entries for {n_seqs} sequences")
        for i, adapter in enumerate(adapters):
            self._adapters[i] = null if adapter is None else adapter.handle
        self.batch.adapters = self._adapters

    def _copy(self, name: str, values: Sequence[int] | Uint32s) -> None:
        target = self._inputs[name]
        if len(values) > len(target):
            raise ValueError(f"{name} has {len(values)} entries; the session takes {len(target)}")
        target[0 : len(values)] = values

    def _write_draws(self, draws: Sequence[Draw]) -> None:
        places = slice(len(draws))
        positions, forced_tokens, *histories = self._draw_columns
        positions[places] = [draw.position for draw in draws]
        forced_tokens[places] = [draw.forced_token for draw in draws]
        for sizes in histories:
            sizes[places] = 0
        for place, draw in enumerate(draws):
            if self._filled[place]() is not draw.sampling:  # its sequence had another place before
                self._write_sampling(place, draw.sampling)
            if draw.history is not None:
                self._owners.append(self._write_history(place, draw.history, draw.n_prompt))

    def _write_sampling(self, place: int, given: Sampling) -> None:
        sampling = self._samplings.get(given)
        if sampling is None:
            sampling = NativeSampling(self._ffi, given, self._vocab)
            self._samplings[given] = sampling
        self._draws[place].sampling = sampling.struct
        self._filled[place] = ref(given)

    def _write_history(self, place: int, given: Uint32s, n_prompt: int) -> Any:
        """Let a draw see what came before it; what is returned must live as long."""
        if n_prompt > len(given):
            raise ValueError(f"n_prompt is {n_prompt}; history has {len(given)} entries")
        struct = self._draws[place]
        history = np.ascontiguousarray(given, dtype=np.uint32)
        struct.n_prompt, struct.n_history = n_prompt, len(history)
        struct.history = owner = self._ffi.from_buffer("uint32_t[]", history)
        return owner


def _nobody() -> None:
    """Stands for a reference to a sampling that is gone."""
