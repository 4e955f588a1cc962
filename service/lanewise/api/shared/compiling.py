"""Compiles grammars: first in the sandbox, which may end, then here what was harmless there.

The library cannot write a compiled grammar down, so it is compiled twice. It does the same both
times, here on a thread with sixteen times the stack.
"""

import asyncio
import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lanewise.engine.drawing.constraint import MAX_DEBT_S, TOO_HEAVY
from lanewise.sandbox.lane import SandboxError, pack_job
from lanewise.sandbox.pool import STACK_BYTES, Sandbox
from lanewise.text.grammar import CompiledGrammar, GrammarCompiler, GrammarError, GrammarSource

T = TypeVar("T")

VOCABULARY = "vocabulary"
REMEMBERED_REFUSALS = 1024
AT_ONCE = 2  # compiled in this process
# Compiling that took more memory than this took more than some milliseconds too.
LARGE_BYTES = 4 << 20
LARGE_NICE = 10
MIN_BYTES = 64 << 10  # of a grammar, whatever was measured
# Reasons that the source is to blame for: it would fail again.
LASTING = {"refused", "time", "memory", "depth", "size", "crash"}

_stack_size = threading.Lock()


@dataclass(slots=True)
class Flight:
    """A grammar on its way, and how many wait for it."""

    task: "asyncio.Task[CompiledGrammar]"
    n_waiting: int = 0


class GrammarService:
    """Grammars for requests: compiled once, refused once, and never more than fit the memory."""

    def __init__(self, compiler: GrammarCompiler, sandbox: Sandbox, most_bytes: int) -> None:
        self._compiler = compiler
        self._sandbox = sandbox
        self._most_bytes = most_bytes
        self._counting = threading.Lock()
        self._bytes = 0  # of all grammars that are there, as the sandbox measured them
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._flights: dict[GrammarSource, Flight] = {}
        self._here = asyncio.Semaphore(AT_ONCE)
        self._threads: set[threading.Thread] = set()

    @property
    def is_compiling(self) -> bool:
        """Whether a thread, which cannot be stopped, is at it in this process."""
        return any(thread.is_alive() for thread in list(self._threads))

    async def get(self, source: GrammarSource, client: int) -> tuple[CompiledGrammar, str]:
        """The grammar, and ``cached`` or ``compiled``.

        GrammarError if it cannot be used, SandboxError if it cannot be compiled now.
        """
        found = self._compiler.cached(source)
        if found is not None:
            if found.debt_s > MAX_DEBT_S:
                raise GrammarError(TOO_HEAVY)
            return found, "cached"
        key = hashlib.blake2b(repr(source).encode("utf-8", "replace"), digest_size=16).digest()
        if key in self._refused:
            self._refused.move_to_end(key)
            raise GrammarError(self._refused[key])
        try:
            return await self._join(source, client), "compiled"
        except GrammarError as error:
            self._refused[key] = str(error)
            while len(self._refused) > REMEMBERED_REFUSALS:
                self._refused.popitem(last=False)
            raise

    async def _join(self, source: GrammarSource, client: int) -> CompiledGrammar:
        """Compile the grammar, or join a compilation that is running."""
        flight = self._flights.get(source)
        if flight is None:
            flight = Flight(asyncio.create_task(self._compile(source, client)))
            self._flights[source] = flight
            flight.task.add_done_callback(lambda _: self._flights.pop(source, None))
        flight.n_waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.n_waiting -= 1
            if not flight.n_waiting:
                flight.task.cancel()  # nothing if it is done
            del flight  # its error refers to this frame

    async def _compile(self, source: GrammarSource, client: int) -> CompiledGrammar:
        described = {VOCABULARY: self._compiler.describe_vocabulary()}
        job = {"kind": source.kind, "text": source.text, "before": source.before}
        job["vocabulary"] = VOCABULARY
        try:
            await self._sandbox.prepare(described, self._sandbox.grammars.limits)
            probed = await self._sandbox.grammars.run(pack_job("compile", job), described, client)
        except SandboxError as error:
            if error.reason in LASTING:
                raise GrammarError(str(error)) from None
            raise
        n_bytes = max(probed["n_bytes"], MIN_BYTES)
        async with self._here:
            self._reserve(n_bytes)
            try:
                grammar = await self._on_large_stack(
                    lambda: self._compiler.compile(source, probed["grammar"]), n_bytes > LARGE_BYTES
                )
            except BaseException:
                self._count(-n_bytes)
                raise
        weakref.finalize(grammar, self._count, -n_bytes).atexit = False
        return grammar

    def _reserve(self, n_bytes: int) -> None:
        while self._bytes + n_bytes > self._most_bytes and self._compiler.forget_oldest():
            pass  # its memory is free unless a request uses it
        if self._bytes + n_bytes > self._most_bytes:
            raise SandboxError(
                "busy",
                f"needs {n_bytes >> 20} MiB; the grammars of running requests have"
                f" {self._bytes >> 20} of {self._most_bytes >> 20} MiB",
            )

        self._count(n_bytes)

    def _count(self, n_bytes: int) -> None:
        with self._counting:  # grammars end on any thread
            self._bytes += n_bytes

    async def _on_large_stack(self, work: Callable[[], T], is_large: bool) -> T:
        """Work on a thread of its own, at a lower priority if it takes long."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def main() -> None:
            if is_large:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LARGE_NICE)
            try:
                settle = partial(done.set_result, work())
            except BaseException as error:
                settle = partial(done.set_exception, error)
            self._threads.discard(thread)
            with suppress(RuntimeError):  # the loop is closed: the server ends
                loop.call_soon_threadsafe(lambda: done.done() or settle())

        with _stack_size:
            before = threading.stack_size(16 * STACK_BYTES)
            try:
                thread = threading.Thread(target=main, name="lanewise-grammar", daemon=True)
                thread.start()
                self._threads.add(thread)
            except RuntimeError as error:
                words = self._sandbox.shortage.note("threads", error)
                raise SandboxError("busy", words) from error
            finally:
                threading.stack_size(before)
        return await done
