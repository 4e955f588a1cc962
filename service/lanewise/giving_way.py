"""Threads that let others go first."""

import os
import threading
from contextlib import suppress


def give_way() -> None:
    """Let the threads that compute go before this one, where the system allows it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
