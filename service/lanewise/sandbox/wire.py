"""Messages between the server, the zygote and its workers: a length, then JSON."""

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("<I")
MAX_BYTES = (1 << 32) - 1
PIECE = 1 << 18


def pack(message: Any) -> bytes:
    """A message as bytes; ValueError or RecursionError if JSON cannot hold it."""
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is too long")
    return HEADER.pack(len(body)) + body


def unpack(body: bytes | bytearray) -> Any:
    """What was packed; ``body`` is what follows the length."""
    return json.loads(body.decode("utf-8", "surrogatepass"))


def send(sock: socket.socket, message: Any) -> None:
    """Send a message on a blocking socket."""
    sock.sendall(pack(message))


def receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message of a blocking socket with its file descriptors; None at the end."""
    head, fds, _, _ = socket.recv_fds(sock, HEADER.size, 1)
    if not head:
        return None
    head += _exactly(sock, HEADER.size - len(head))
    (n_bytes,) = HEADER.unpack(head)
    return unpack(_exactly(sock, n_bytes)), fds


def _exactly(sock: socket.socket, n_bytes: int) -> bytearray:
    body = bytearray()
    while len(body) < n_bytes:
        piece = sock.recv(min(PIECE, n_bytes - len(body)))
        if not piece:
            raise EOFError
        body += piece
    return body
