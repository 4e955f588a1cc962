"""Works one batch off: asks what has no answer yet, and writes the answers as they come."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lanewise.batches.answers import Answers, Said
from lanewise.batches.forms import Form, Reply
from lanewise.batches.lines import Limits, Line, read_lines, text_of
from lanewise.records.files import DiskFullError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # between tries while a disk is full
MAX_AT_ONCE = 256  # unanswered requests whose lines are written together

# A path, and the line of the request for it.
Ask = Callable[[str, bytes], Awaitable[Reply]]
Slot = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class Counts:
    """Requests of a batch by what became of them."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    unanswered: int = 0  # of those that failed, for the batch ended before

    @property
    def left(self) -> int:
        """Requests without an answer."""
        return self.total - self.completed - self.failed


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of a batch; errors None: they stand among the answers."""

    requests: Path
    answers: Path
    errors: Path | None = None
    may_be_foreign: bool = False  # what lies where the answers go may be something else


class Told(NamedTuple):
    """An answer that is to be written."""

    custom_id: str
    line: bytes
    is_good: bool


class Work:
    """One batch. What it has answered is in its files alone, so it may end at any moment."""

    def __init__(self, paths: Paths, form: Form, limits: Limits) -> None:
        self._paths, self._form, self._limits = paths, form, limits
        self.counts = Counts()
        self._lines: list[Line] = []
        self._done: set[str] = set()
        self._answers: Answers | None = None
        self._errors: Answers | None = None
        self._lock = asyncio.Lock()  # of those who write
        self._unwritten: list[Told] = []
        self._writing: asyncio.Future[None] | None = None
        self.changed: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Read the requests, and the answers that there are; BadLinesError or OSError.

        Answers to what is no request of the file are left alone, and not counted.
        """
        self._lines = read_lines(self._paths.requests, self._limits)
        self.counts = Counts(total=len(self._lines))
        known = {line.custom_id for line in self._lines}

        def note(said: Said) -> None:
            custom_id = said["custom_id"]
            if custom_id in known and custom_id not in self._done:
                self._done.add(custom_id)
                self._count(self._form.is_good(said))
                self.counts.unanswered += self._form.is_unanswered(said)

        foreign = self._paths.may_be_foreign
        self._answers = Answers(self._paths.answers, note, may_be_foreign=foreign)
        if self._paths.errors is not None:
            self._errors = Answers(self._paths.errors, note)

    async def settle(self) -> None:
        """Wait until what was said is on the disk."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def close(self) -> None:
        """Close its files; what is not written by then will be asked again."""
        if self._writing is not None:
            self._writing.cancel()
        for file in (self._answers, self._errors):
            if file is not None:
                file.close()
        self._answers = self._errors = None

    async def run(self, ask: Ask, slot: Slot, n_workers: int) -> None:
        """Answer all that has no answer, at most ``n_workers`` at a time, each within a slot."""
        pending = iter([line for line in self._lines if line.custom_id not in self._done])
        async with asyncio.TaskGroup() as group:
            for _ in range(min(n_workers, self.counts.left)):
                group.create_task(self._work(pending, ask, slot))

    async def give_up(self, why: str) -> None:
        """Write of all that has no answer that it has none."""
        left = [line for line in self._lines if line.custom_id not in self._done]
        for first in range(0, len(left), MAX_AT_ONCE):
            lines = left[first : first + MAX_AT_ONCE]
            self._unwritten += [
                Told(line.custom_id, self._form.unanswered(line.custom_id, why), False)
                for line in lines
            ]
            await self._write()
            self.counts.unanswered += len(lines)

    async def _work(self, pending: Iterator[Line], ask: Ask, slot: Slot) -> None:
        for line in pending:
            async with slot():
                text = await asyncio.to_thread(text_of, self._paths.requests, line)
                reply = await ask(line.url, text)
            said = self._form.replied(line.custom_id, reply)
            self._unwritten.append(Told(line.custom_id, said, reply.is_good))
            await self._write()

    async def _write(self) -> None:
        """Have what was said up to now on the disk; what others say meanwhile goes together."""
        async with self._lock:
            said, self._unwritten = self._unwritten, []
            if not said:
                return  # it was written with another's
            self._writing = asyncio.ensure_future(self._append(said))
            # A task that is stopped meanwhile has given the answer already.
            await asyncio.shield(self._writing)
        self.changed()

    async def _append(self, said: Sequence[Told]) -> None:
        for is_good, file in ((True, self._answers), (False, self._errors or self._answers)):
            told = [one for one in said if one.is_good is is_good]
            if told and file is not None:
                await self._append_to(file, [one.line for one in told])
                self._done.update(one.custom_id for one in told)
                for _ in told:
                    self._count(is_good)

    async def _append_to(self, file: Answers, lines: list[bytes]) -> None:
        """Add lines to a file; while the disk is full, wait for room."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await asyncio.to_thread(file.append, lines)
                return
            except DiskFullError:
                logger.warning("%s: the disk is full; %d answers wait", file.path, len(lines))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _count(self, is_good: bool) -> None:
        if is_good:
            self.counts.completed += 1
        else:
            self.counts.failed += 1
