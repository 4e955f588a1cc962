"""Messages between the server, the zygote and its workers: two lengths, then JSON and bytes.

What a message has under ``raw`` are bytes that go as they are, such as an image.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

RAW = "raw"
HEADER = struct.Struct("<II")
MAX_BYTES = (1 << 32) - 1
PIECE = 1 << 18


def pack(message: Mapping[str, Any]) -> bytes:
    """A message as bytes; ValueError or RecursionError if JSON cannot hold it."""
    raw: bytes = message.get(RAW, b"")
    told = {key: value for key, value in message.items() if key != RAW}
    body = json.dumps(told, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if max(len(body), len(raw)) > MAX_BYTES:
        raise ValueError(f"a message of {max(len(body), len(raw))} bytes is too long")
    return b"".join((HEADER.pack(len(body), len(raw)), body, raw))


def unpack(body: bytes | bytearray, n_json: int) -> Any:
    """What was packed; ``body`` is what follows the lengths."""
    message = json.loads(body[:n_json].decode("utf-8", "surrogatepass"))
    if len(body) > n_json:
        message[RAW] = bytes(memoryview(body)[n_json:])
    return message


def send(sock: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message on a blocking socket."""
    sock.sendall(pack(message))


def receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message of a blocking socket with its file descriptors; None at the end."""
    head, fds, _, _ = socket.recv_fds(sock, HEADER.size, 1)
    if not head:
        return None
    head += _exactly(sock, HEADER.size - len(head))
    n_json, n_raw = HEADER.unpack(head)
    return unpack(_exactly(sock, n_json + n_raw), n_json), fds


def _exactly(sock: socket.socket, n_bytes: int) -> bytearray:
    body = bytearray()
    while len(body) < n_bytes:
        piece = sock.recv(min(PIECE, n_bytes - len(body)))
        if not piece:
            raise EOFError
        body += piece
    return body
