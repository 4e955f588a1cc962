"""A replica: an actor with a server of its own, which neither outlives the other."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import aiohttp
from ray.util import get_node_ip_address
from yarl import URL

from lanewise.cluster.messages import Asked, Head, ServerGoneError, Taken

logger = logging.getLogger("ray.serve")

HOST = "127.0.0.1"
POLL_S = 0.05
ASK_S = 10.0  # for an answer about its health
SOON = aiohttp.ClientTimeout(total=ASK_S)
STOP_S = 40.0  # for a server that has nothing left to answer; it says so sooner
KEEP_ALIVE_S = 30.0  # shorter than the server keeps a connection
LINE_BYTES = 1 << 18
# Of a connection, not of a message (RFC 9110, 7.6.1); Expect was answered where the body was read.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect".split()
)


class Replica:
    """Starts ``lanewise serve`` on this host and passes requests on to it."""

    def __init__(self, settings: Mapping[str, Any], start_s: float) -> None:
        """Returns when the server is ready; ServerGoneError if it ends or is not within start_s.

        ``settings`` are those of ``lanewise serve``, as its YAML file has them.
        """
        self._port = _free_port()
        self._url = f"http://{HOST}:{self._port}"
        self._is_stopping = False
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "config.yaml")
            config.write_text(json.dumps(dict(settings)))  # JSON is YAML; keys are no arguments
            command = [sys.executable, "-m", "lanewise.child", str(os.getpid()), "serve"]
            command += ["--config", str(config), "--host", HOST, "--port", str(self._port)]
            command += ["--allowed-hosts", "*"]  # it gets the names by which the cluster is asked
            # For the kernel this thread is the parent: the event loop's, which lives to the end.
            self._process = subprocess.Popen(command)
            self._wait_until_ready(start_s)
        threading.Thread(target=self._end_with_server, daemon=True).start()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=ASK_S),
            auto_decompress=False,
            skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
        )

    def _wait_until_ready(self, start_s: float) -> None:
        deadline = time.monotonic() + start_s
        while not self._is_ready():
            if (status := self._process.poll()) is not None:
                raise ServerGoneError(f"lanewise serve ended with status {status}: see its log")
            if time.monotonic() > deadline:
                self._process.kill()
                raise ServerGoneError(f"lanewise serve was not ready within {start_s:g} s")
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        with closing(HTTPConnection(HOST, self._port, timeout=ASK_S)) as server:
            try:
                server.request("GET", "/health/ready")
                return server.getresponse().status == 200
            except (OSError, HTTPException):
                return False

    def _end_with_server(self) -> None:
        status = self._process.wait()
        if not self._is_stopping:
            logger.error("lanewise serve ended with status %d, and its replica with it", status)
            os._exit(1)  # requests that it had are told so, and a new replica starts

    async def check_health(self) -> None:
        """ServerGoneError unless the server's engine runs: then a new replica takes its place."""
        try:
            async with self._session.get(f"{self._url}/health", timeout=SOON) as answer:
                if answer.status == 200:
                    return
                why = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        raise ServerGoneError(f"lanewise serve is not well: {why}")

    async def answer(self, asked: Asked) -> AsyncIterator[Taken | Head | bytes]:
        """First that it is taken, then how the answer begins, then its bytes as they come.

        ServerGoneError if the server goes before the end. A caller that stops
        iterating stops the server's work for it.
        """
        yield Taken()
        url = URL(self._url + asked.target, encoded=True)
        headers = [
            (n.decode("latin-1"), v.decode("latin-1")) for n, v in _of_message(asked.headers)
        ]
        try:
            async with self._session.request(
                asked.method, url, headers=headers, data=asked.body or None, allow_redirects=False
            ) as answer:
                yield Head(answer.status, _of_message(answer.raw_headers))
                async for some in answer.content.iter_any():
                    yield some
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGoneError(f"{type(error).__name__}: {error}") from None

    async def metrics(self) -> tuple[str, str]:
        """Address and port of the server, as far as others can tell it by them, and its metrics."""
        async with self._session.get(f"{self._url}/metrics", timeout=SOON) as answer:
            return f"{get_node_ip_address()}:{self._port}", await answer.text()

    async def __del__(self) -> None:
        """Ray Serve calls this when the replica has answered everything and is to end."""
        self._is_stopping = True
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        with suppress(aiohttp.ClientError):
            await self._session.close()


def _of_message(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])
