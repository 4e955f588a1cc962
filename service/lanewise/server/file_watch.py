"""Looks whether files that the model is read from are written to while it is served.

A mapped file shows every change at once, so answers after one are those of no model. What packing
copies is not affected: its files are closed by then.
"""

import asyncio
import logging

from lanewise.api.shared.state import ServerState
from lanewise.loading.base.mapped_file import changed_files

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0


async def watch(state: ServerState, interval_s: float = INTERVAL_S) -> None:
    """Until a file was changed; then the server is not ready any more, and says so once."""
    while True:
        # In a thread: asking a network's file system may take its time.
        changed = await asyncio.to_thread(changed_files)
        if changed:
            break
        await asyncio.sleep(interval_s)
    state.failure = (
        f"{', '.join(changed)}: changed while it is served, so answers are worth nothing;"
        " replace model files by rename, never in place, and start again"
    )
    logger.error("%s", state.failure)
