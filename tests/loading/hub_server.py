"""A small model hub on the loopback interface: listing, files, ranges, and broken connections."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server serves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    repository: str = "org/name"
    status: int = 200  # of everything, when not 200
    error_code: str = ""
    cut: dict[str, int] = field(default_factory=dict)  # file: bytes after which to hang up, once
    stall: dict[str, int] = field(default_factory=dict)  # file: bytes after which to wait, once
    stalled: Event = field(default_factory=Event)
    released: Event = field(default_factory=Event)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""

    def downloads(self) -> list[tuple[str, str | None]]:
        """Return the files sent and the ranges asked for."""
        return [
            (path.rpartition("/")[2], span)
            for method, path, span in self.requests
            if method == "GET" and "/resolve/" in path
        ]


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does, as far as its client library looks."""

    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status != 200:
            self.reply(hub.status, b"{}", {"X-Error-Code": hub.error_code}, body)
        elif path.startswith(f"/api/models/{hub.repository}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
                for name, content in hub.files.items()
            ]
            self.reply(200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, body)
        elif path.startswith(f"/api/models/{hub.repository}"):
            info = {
                "id": hub.repository,
                "modelId": hub.repository,
                "sha": COMMIT,
                "tags": [],
                "siblings": [{"rfilename": name} for name in hub.files],
            }
            self.reply(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, body)
        elif match := re.fullmatch(rf"/{hub.repository}/resolve/[^/]+/(.+)", path):
            self.send_file(match[1], body)
        else:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

    def send_file(self, name: str, body: bool) -> None:
        content = self.hub.files.get(name)
        if content is None:
            self.reply(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, body)
            return
        headers = {"ETag": f'"{etag(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(span[1]) if span else 0
        end = min(int(span[2]) + 1, len(content)) if span and span[2] else len(content)
        to_end = body and end == len(content)  # only such answers break
        stall = self.hub.stall.pop(name, None) if to_end else None
        if stall is not None:
            self.send_part(content, stall, headers)
            return
        if span:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        cut = self.hub.cut.pop(name, None) if to_end else None
        self.reply(206 if span else 200, content[start:end], headers, body, cut)

    def send_part(self, content: bytes, count: int, headers: dict[str, str]) -> None:
        self.reply(200, content, headers, body=True, cut=count)
        self.wfile.flush()
        self.hub.stalled.set()
        self.hub.released.wait(60)

    def reply(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        body: bool,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content if cut is None else content[:cut])
        if cut is not None:
            self.close_connection = True


def etag(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
