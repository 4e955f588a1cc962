"""Runs the batches of a data directory, one piece after another, whenever the engine has room."""

import asyncio
import logging
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from lanewise.api.batches.metrics import BatchMetrics
from lanewise.api.http.limits import DEFAULT_BYTES
from lanewise.batches.forms import FORMS, Reply
from lanewise.batches.hours import Hours
from lanewise.batches.lines import BadLinesError, Fault, Limits
from lanewise.batches.table import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FINALIZING,
    IN_PROGRESS,
    VALIDATING,
    Asked,
    BatchTable,
    Row,
    new_id,
)
from lanewise.batches.work import Ask, Paths, Work
from lanewise.records.files import (
    DiskFullError,
    FileStore,
    StoredFile,
    place_copy,
    remove_unknown_folders,
    sync_folder,
)

logger = logging.getLogger(__name__)

FOLDER = "batches"
REQUESTS, ANSWERS, ERRORS = "requests.jsonl", "answers.jsonl", "errors.jsonl"
OUTPUT = "batch_output"  # the purpose of files with answers
MAX_ACTIVE = 4  # batches that are worked on at once; the lines of each are in memory
LOOK_S = 1.0  # how often counts are noted and the clock is read
SWEEP_S = 60.0  # how often what is too old is removed
AGAIN_S = 5.0  # until a batch is tried again that could not be worked on
KEPT_DAYS = 60.0  # from its creation on a batch is shown for so long

# The number and the tenant of a key, a path, and the line of a request.
AskFor = Callable[[int, str, str, bytes], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How much of a server batches may take, and when."""

    concurrency: int = 32  # requests at a time
    hours: Hours = field(default_factory=Hours)
    memory_bytes: int = DEFAULT_BYTES  # that their requests hold together


class Runner:
    """All batches of one server."""

    def __init__(
        self,
        files: FileStore,
        ask: AskFor,
        number_of: Callable[[str], int | None],
        limits: Limits,
        rules: BatchRules,
        registry: CollectorRegistry,
    ) -> None:
        """``ask`` asks for a key's number and tenant; ``number_of`` tells the number of a tenant.

        Tenants without a number have no key any more.
        """
        self.table = BatchTable(files.database)
        self._files, self._ask, self._number_of = files, ask, number_of
        self.limits, self._rules = limits, rules
        self.folder = files.folder.parent / FOLDER
        self._places = asyncio.Semaphore(rules.concurrency)
        self._active: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}  # of those that are to be cancelled
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._metrics = BatchMetrics(registry)

    # What endpoints call.

    async def create(self, asked: Asked, source: Path) -> Row:
        """A new batch of the requests in a file, of which it has a copy from now on.

        QuotaError, DiskFullError or OSError if it cannot be.
        """
        batch_id = new_id(asked.form)
        row = await asyncio.to_thread(self._add, batch_id, asked, source)
        self._wake.set()
        return row

    async def cancel(self, batch_id: str) -> bool:
        """End a batch before its time; False if it has ended already."""
        done = await asyncio.to_thread(
            self.table.enter, batch_id, CANCELLING, VALIDATING, IN_PROGRESS
        )
        if done and (stop := self._stops.get(batch_id)) is not None:
            stop.set()
        self._wake.set()
        return done

    # What the server calls.

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Do no more; what has no answer is asked again by the next server."""
        if self._is_stopping:
            return  # a task that is cancelled again would not close its files in order
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
        for task in self._active.values():
            task.cancel()

    async def stopped(self) -> None:
        """Stop, and wait until nothing runs any more."""
        self.stop()
        tasks = [*self._active.values(), *([self._task] if self._task is not None else [])]
        if tasks:
            await asyncio.wait(tasks)

    def _add(self, batch_id: str, asked: Asked, source: Path) -> Row:
        folder = self.folder / batch_id
        try:
            folder.mkdir(mode=0o700, parents=True)
            place_copy(source, folder / REQUESTS)
            sync_folder(self.folder)
            return self.table.add(batch_id, asked)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def _run(self) -> None:
        await asyncio.to_thread(self._clean)
        swept = 0.0
        while True:
            self._wake.clear()
            try:
                if time.monotonic() - swept >= SWEEP_S:
                    swept = time.monotonic()
                    await asyncio.to_thread(self._sweep)
                await self._start_some()
                await asyncio.to_thread(self._publish)
            except (OSError, DiskFullError, sqlite3.Error) as error:
                logger.warning("batches: %s", error or "the disk is full")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), AGAIN_S)

    def _clean(self) -> None:
        """Remove what a server left that was killed: folders of batches that have ended."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unknown_folders(self.folder, {row["id"] for row in self.table.open()})

    def _sweep(self) -> None:
        self._files.remove_expired()
        self.table.remove_older(KEPT_DAYS)

    def _publish(self) -> None:
        self._metrics.publish(self.table.counts(), *self._files.totals())

    async def _start_some(self) -> None:
        """Begin with the oldest of those whose key has fewest, while there is a place."""
        rows = await asyncio.to_thread(self.table.open)
        busy = Counter(row["tenant"] for row in rows if row["id"] in self._active)
        waiting = [row for row in rows if row["id"] not in self._active]
        while waiting and len(self._active) < MAX_ACTIVE:
            row = min(waiting, key=lambda one: busy[one["tenant"]])
            waiting.remove(row)
            busy[row["tenant"]] += 1
            self._stops[row["id"]] = asyncio.Event()
            task = asyncio.create_task(self._work_on(row))
            self._active[row["id"]] = task

    async def _work_on(self, row: Row) -> None:
        batch_id = row["id"]
        try:
            await self._take_to_its_end(row)
        except Exception:
            logger.exception("batch %s: it will be tried again", batch_id)
            await asyncio.sleep(AGAIN_S)
        finally:
            del self._active[batch_id], self._stops[batch_id]
            self._wake.set()

    async def _take_to_its_end(self, row: Row) -> None:
        folder, form = self.folder / row["id"], FORMS[row["form"]]
        errors = folder / ERRORS if form.splits else None
        paths = Paths(folder / REQUESTS, folder / ANSWERS, errors)
        work = Work(paths, form, self.limits_of(row))
        number = self._number_of(row["tenant"])
        try:
            try:
                if number is None:
                    fault = Fault("invalid_api_key", "the server knows the batch's key no more")
                    raise BadLinesError([fault])
                await asyncio.to_thread(work.open)
            except (BadLinesError, FileNotFoundError) as error:
                lost = Fault("lost_file", "the requests are no longer in data_dir")
                faults = error.faults if isinstance(error, BadLinesError) else [lost]
                await asyncio.to_thread(self.table.fail, row["id"], faults)
            else:
                ask = partial(self._counted, number, row["tenant"])
                end = await self._answer(row, work, ask)
                await self._finish(row, work, end)
        finally:
            work.close()
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def limits_of(self, row: Row) -> Limits:
        """What the lines of a batch may have: all are for its endpoint."""
        return replace(self.limits, urls=(row["endpoint"],))

    async def _counted(self, number: int, tenant: str, path: str, line: bytes) -> Reply:
        reply = await self._ask(number, tenant, path, line)
        self._metrics.note_answer(is_good=reply.is_good)
        return reply

    async def _answer(self, row: Row, work: Work, ask: Ask) -> str:
        """Have the requests answered; how it ended."""
        await asyncio.to_thread(self.table.enter, row["id"], IN_PROGRESS, VALIDATING)
        if (await asyncio.to_thread(self.table.get, row["id"]))["status"] == CANCELLING:
            return CANCELLED
        noted = -1  # requests without an answer, of those that were told
        running = asyncio.create_task(work.run(ask, self._slot, self._rules.concurrency))
        stopping = asyncio.create_task(self._stops[row["id"]].wait())
        try:
            while not running.done() and not stopping.done() and time.time() < row["expires_at"]:
                if work.counts.left != noted:
                    noted = work.counts.left
                    await self._note(row, work)
                await asyncio.wait(
                    {running, stopping}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
            if running.done():
                await running
                return COMPLETED
            return CANCELLED if stopping.done() else EXPIRED
        finally:
            stopping.cancel()
            running.cancel()
            await asyncio.wait({running})

    async def _note(self, row: Row, work: Work) -> None:
        try:
            await asyncio.to_thread(self.table.note_counts, row["id"], work.counts)
        except sqlite3.Error as error:  # the disk is full; files are what counts
            logger.warning("batch %s: %s", row["id"], error)

    async def _finish(self, row: Row, work: Work, end: str) -> None:
        await work.settle()
        if not work.counts.left:
            end = COMPLETED if end == EXPIRED else end
        if end == EXPIRED:
            await work.give_up("expired")
        elif end == CANCELLED and FORMS[row["form"]].tells_cancelled:
            await work.give_up("cancelled")
        while True:
            try:
                await asyncio.to_thread(self._file_away, row, work, end)
                return
            except (DiskFullError, sqlite3.Error) as error:
                logger.warning("batch %s: %s", row["id"], error or "the disk is full")
            await asyncio.sleep(AGAIN_S)

    def _file_away(self, row: Row, work: Work, end: str) -> None:
        if end == COMPLETED:
            self.table.enter(row["id"], FINALIZING, IN_PROGRESS)
            if self.table.get(row["id"])["status"] == CANCELLING:
                end = CANCELLED  # it came too late to matter, but its client was told
        files = [self._file_of(row, name) for name in (ANSWERS, ERRORS)]
        self.table.end(row, end, work.counts, self._files, *files)

    def _file_of(self, row: Row, name: str) -> StoredFile | None:
        """A file with answers, put where files lie; its row comes later."""
        path = self.folder / row["id"] / name
        if not path.exists() or not (size := path.stat().st_size):
            return None
        now = int(time.time())
        kind = "output" if name == ANSWERS else "error"
        made = StoredFile(
            f"file-{row['id'].rpartition('_')[2]}{kind}",
            row["tenant"],
            f"{row['id']}_{kind}.jsonl",
            OUTPUT,
            size,
            now,
            self._files.expiry(now, row["output_keep_s"]),
        )
        place_copy(path, self._files.path_of(made.id))
        return made

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """A place among the requests that batches may have at a time, at an hour for them."""
        async with self._places:
            while not self._rules.hours.has(datetime.now()):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)  # no event tells the time
            with self._metrics.running.track_inprogress():
                yield
