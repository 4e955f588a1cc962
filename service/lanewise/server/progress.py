"""Says how far loading the weights is."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

from lanewise import host

logger = logging.getLogger(__name__)

PROGRESS_LINE_S = 5.0


@contextlib.contextmanager
def progress_of(name: str) -> Iterator[Callable[[int, int], None]]:
    """Says how far loading is: a bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield progress_lines(name)
        return
    # Imported here because it takes longer than the rest of what a service does before loading.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("loading {task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def progress_lines(name: str) -> Callable[[int, int], None]:
    """Logs a line now and then, and one at the end."""
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_LINE_S or done == total:
            last = now
            logger.info(
                "loading %s: %.0f %% of %s", name, 100 * done / total, host.format_size(total)
            )

    return show
