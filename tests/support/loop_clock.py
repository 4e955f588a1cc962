"""A real server whose event loop runs a clock: how long was it kept from everybody else?

As a program, ``loop_clock.py FILE serve …`` is ``lanewise serve …`` with the clock.
"""

import contextlib
import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from serving import free_port, running

TICK_S = 0.001
NUMBER = struct.Struct("d")


@dataclass(frozen=True)
class ClockedServer:
    """Where it is, which process it is, and the memory that its clock writes to."""

    url: str
    pid: int
    _shared: mmap.mmap

    @property
    def longest_pause_s(self) -> float:
        """The longest time since the last reset in which the event loop ran nothing else."""
        return float(NUMBER.unpack_from(self._shared)[0])

    def reset(self) -> None:
        NUMBER.pack_into(self._shared, 0, 0.0)


@contextlib.contextmanager
def clocked_server(*arguments: str) -> Iterator[ClockedServer]:
    """``lanewise serve`` with these arguments and the clock, ready to answer."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(NUMBER.size))
        file.flush()
        program = [sys.executable, __file__, file.name, "serve", "--port", str(port)]
        with (
            running([*program, *arguments], f"{url}/health/ready") as process,
            mmap.mmap(file.fileno(), NUMBER.size) as shared,
        ):
            yield ClockedServer(url, process.pid, shared)


def _serve(path: str, arguments: list[str]) -> int:
    from lanewise.cli import main

    file = os.open(path, os.O_RDWR)
    shared = mmap.mmap(file, NUMBER.size)
    make_loop = uvloop.new_event_loop

    def clocked() -> uvloop.Loop:
        loop = make_loop()
        last = time.monotonic()

        def tick() -> None:
            nonlocal last
            now = time.monotonic()
            if now - last - TICK_S > NUMBER.unpack_from(shared)[0]:
                NUMBER.pack_into(shared, 0, now - last - TICK_S)
            last = now
            loop.call_later(TICK_S, tick)

        loop.call_soon(tick)
        return loop

    uvloop.new_event_loop = clocked
    return main(arguments)


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1], sys.argv[2:]))
