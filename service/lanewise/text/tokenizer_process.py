"""The process in which a tokenizer runs that may take any time and memory."""

import json
import resource
import signal
from array import array
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tokenizers

from lanewise.text.tokenizer_copies import continuing_copy, plain_copy

FILES = 32


def main() -> None:
    """Make the tokenizer that comes first, then do what is asked until the server hangs up."""
    connection = Connection(0)
    limits = json.loads(connection.recv_bytes())
    for kind, most in (
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    copies: dict[str, tokenizers.Tokenizer] = {}

    def load(text: bytes) -> bytes:
        whole = tokenizers.Tokenizer.from_str(text.decode("utf-8", "surrogatepass"))
        whole.no_truncation()
        whole.no_padding()
        plain = plain_copy(whole)
        copies.update(whole=whole, plain=plain, continuing=continuing_copy(plain))
        return b""

    try:
        _limit_memory(limits["memory"])
        _reply(connection, load, connection.recv_bytes(), limits["seconds"])
        _limit_memory(limits["later"])
        while copies:
            message = json.loads(connection.recv_bytes())
            _reply(connection, lambda asked: _answer(copies, asked), message, message["seconds"])
    except (EOFError, OSError):
        pass


def _reply(
    connection: Connection, work: Callable[[Any], bytes], given: Any, seconds: float
) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process
    try:
        reply = b"R" + work(given)
    except BaseException as error:  # a panic of the library is no Exception
        reply = b"E" + f"{type(error).__name__}: {error}"[:400].encode()
    signal.setitimer(signal.ITIMER_PROF, 0)
    connection.send_bytes(reply)


def _answer(copies: dict[str, tokenizers.Tokenizer], message: dict[str, Any]) -> bytes:
    if "control" in message:
        token = tokenizers.AddedToken(message["control"], normalized=False, special=True)
        copies["whole"].add_special_tokens([token])
        return b""
    tokenizer = copies[message["kind"]]
    if "ids" in message:
        return tokenizer.decode(message["ids"]).encode()
    special = message["special"]
    if "both" in message:
        text, *pair = message["both"]
        found = tokenizer.encode(text, pair[0] if pair else None, add_special_tokens=special)
        return json.dumps([found.ids, found.type_ids, found.sequence_ids]).encode()
    encodings = tokenizer.encode_batch_fast(message["texts"], add_special_tokens=special)
    parts = [array("I", map(len, encodings))]
    encodings.reverse()
    while encodings:  # the library's tokens are large
        parts.append(array("I", encodings.pop().ids))
    return b"".join(part.tobytes() for part in parts)


def _limit_memory(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most, hard = pages * resource.getpagesize() + more, resource.getrlimit(resource.RLIMIT_AS)[1]
    within = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (within, hard))
