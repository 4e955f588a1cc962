"""How far a long command is: a bar on a terminal, a line every ten seconds elsewhere."""

import sys
import threading
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from lanewise.told import told

EVERY_S = 10.0


class Told(Progress):
    """A bar where there is a terminal; elsewhere its text as a line now and then, on stderr."""

    def __init__(self, verb: str, *columns: ProgressColumn, every_s: float = EVERY_S) -> None:
        console = Console(stderr=True)
        self._verb = verb
        self._every_s = every_s
        self._ended = threading.Event()
        self._teller: threading.Thread | None = None
        super().__init__(
            TextColumn(f"{verb} {{task.description}}"),
            BarColumn(),
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
            # Without a terminal `track` would count in a thread that ends at once.
            auto_refresh=console.is_terminal,
        )

    def start(self) -> None:
        """Begin to show, or to tell."""
        super().start()
        if self.disable:
            self._teller = threading.Thread(target=self._tell, daemon=True)
            self._teller.start()

    def stop(self) -> None:
        """End that."""
        self._ended.set()
        if self._teller is not None:
            self._teller.join()
        super().stop()

    def _tell(self) -> None:
        while not self._ended.wait(self._every_s):
            for task in self.tasks:
                print(f"lanewise: {self._verb} {told(line_of(task))}", file=sys.stderr, flush=True)


def line_of(task: Task) -> str:
    """How far a task is, and when it may end, if that can be said."""
    parts = [task.description]
    if task.total:
        parts.append(f"{task.percentage:.0f} %")
    remaining = task.time_remaining
    if remaining is not None and not task.finished:
        parts.append(f"{duration(remaining)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time in one or two units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def steps_bar(verb: str) -> Progress:
    """A bar of steps."""
    return Told(verb, MofNCompleteColumn(), TimeRemainingColumn())


def bytes_bar(verb: str) -> Progress:
    """A bar of bytes."""
    columns: list[Any] = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
    return Told(verb, *columns, TimeRemainingColumn())


def work_bar(verb: str) -> Progress:
    """A bar of work of unlike parts, by what each costs."""
    return Told(verb, TaskProgressColumn(), TimeRemainingColumn())
