"""Servers that faults happen to, and clients that ask them things until they are told to stop."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtests.server import Server, begin, stop, wait_until_ready

PAUSE_S = 0.05  # after an answer: who is refused asks again soon
ANSWER_S = 120.0
COMPLETIONS = "/v1/completions"


class Target:
    """A server on a port of its own, which can end and begin again."""

    def __init__(self, name: str, folder: Path, options: Sequence[str], group: Path | None) -> None:
        self.name = name
        self.folder = folder
        self._options = ("--served-model-name", name, "--threads", "1", *options)
        self._group = group
        self.model: str | None = None
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """The process that runs now, or has ended last."""
        assert self._server is not None
        return self._server

    @property
    def group(self) -> Path:
        """The control group that it is started in."""
        assert self._group is not None
        return self._group

    @property
    def address(self) -> str:
        """What Prometheus calls the instance."""
        return f"127.0.0.1:{self.server.port}"

    def start(self) -> None:
        """Begin, on the same port as before, and be ready; OSError if it does not become so."""
        port = None if self._server is None else self._server.port
        log = self.folder / "log"
        self._server = begin(log, self.model, self._options, port=port, group=self._group)
        wait_until_ready(self._server)

    def kill(self) -> None:
        """SIGKILL."""
        self.server.process.kill()
        self.server.process.wait()

    def stop(self) -> None:
        """End in order if it runs."""
        if self._server is not None and self._server.process.poll() is None:
            stop(self._server)


def ask(target: Target, body: Mapping[str, Any], answer_s: float = ANSWER_S) -> int:
    """The status of a completion that has been read to its end; 0: there was no answer in time."""
    request = urllib.request.Request(
        target.server.url + COMPLETIONS,
        json.dumps({"ignore_eos": True, **body}).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=answer_s) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def running_sequences(target: Target) -> int:
    """How many are in the server's batch."""
    with urllib.request.urlopen(f"{target.server.url}/metrics", timeout=ANSWER_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(
        int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "vllm:num_requests_running"
    )


@contextmanager
def repeating(work: Callable[[threading.Event], object], count: int = 1) -> Iterator[None]:
    """Do something again and again in so many threads; it gets the event that ends it."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.is_set():
            work(is_over)
            is_over.wait(PAUSE_S)

    threads = [threading.Thread(target=repeat) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@contextmanager
def clients(
    target: Target, body: Mapping[str, Any], count: int = 1, answer_s: float = ANSWER_S
) -> Iterator[None]:
    """So many clients that send a request, and the next after its answer, or this time without."""
    with repeating(lambda _: ask(target, body, answer_s), count):
        yield
