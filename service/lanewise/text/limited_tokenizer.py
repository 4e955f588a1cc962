"""A tokenizer that may take any time and memory, in processes that have limits.

``doubt`` says which are run so. Each has a process for short texts, and one for long texts that is
started when there is one, so that a short text waits for no long one. Here the library has the
vocabulary alone, and nothing that the model's file has done to texts.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.text.isolated import start_isolated
from lanewise.text.tokenizing_error import TokenizingError

logger = logging.getLogger(__name__)

Ids = NDArray[np.uint32]
Kind = Literal["whole", "plain", "continuing"]
PARTS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")

LOAD_S, LOAD_BYTES_A_S = 1.0, 4 << 20
LOAD_MEMORY, LOAD_MEMORY_OF_BYTE = 64 << 20, 24
TEXT_S, TEXT_CHARACTERS_A_S, MAX_S = 0.1, 1 << 19, 4.0
TEXT_MEMORY = 160 << 20  # the library has 300 bytes for a token
SHORT_TEXTS = 1 << 16  # characters
ENVIRONMENT = ("LD_LIBRARY_PATH",)
SIGNALS = {
    signal.SIGPROF: "it takes more than {seconds:.3g} s of processor time",
    signal.SIGABRT: "it needs more than {memory} MiB",
    signal.SIGSEGV: "it is nested too deeply",
}


class Found(NamedTuple):
    """What the library calls an encoding, as far as it is read."""

    ids: Ids
    type_ids: Sequence[int] = ()
    sequence_ids: Sequence[int | None] = ()

    def __len__(self) -> int:
        return len(self.ids)


class _Process:
    """One process with the tokenizer; threads take turns."""

    def __init__(self, path: str, text: bytes) -> None:
        self._path, self._text = path, text
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._end: Callable[[], object] = lambda: None
        self._controls: list[str] = []

    def ask(self, message: dict[str, Any], n_characters: int) -> bytes:
        """The answer; TokenizingError where there is none within the limits."""
        seconds = min(TEXT_S + n_characters / TEXT_CHARACTERS_A_S, MAX_S)
        packed = json.dumps(message | {"seconds": seconds}).encode()
        with self._lock:
            if self._running is None:
                self.start()
            return self._exchange(packed, seconds, TEXT_MEMORY)

    def start(self) -> None:
        """Start it; TokenizingError if the tokenizer cannot be made within the limits."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _popen(theirs)
        connection = Connection(ours.detach())
        self._running = process, connection
        self._end = weakref.finalize(self, _end, process, connection)
        seconds = LOAD_S + len(self._text) / LOAD_BYTES_A_S
        memory = LOAD_MEMORY + LOAD_MEMORY_OF_BYTE * len(self._text)
        limits = {"seconds": seconds, "memory": memory, "later": TEXT_MEMORY}
        connection.send_bytes(json.dumps(limits).encode())
        self._exchange(self._text, seconds, memory)
        for name in self._controls:
            self._exchange(_control(name), TEXT_S, TEXT_MEMORY)

    def add_control(self, name: str) -> None:
        """Have a word be read as the token that it is, also by processes to come."""
        with self._lock:
            self._controls.append(name)
            if self._running is not None:
                self._exchange(_control(name), TEXT_S, TEXT_MEMORY)

    def _exchange(self, packed: bytes, seconds: float, memory: int) -> bytes:
        assert self._running is not None
        process, connection = self._running
        try:
            connection.send_bytes(packed)
            reply = connection.recv_bytes()
        except (EOFError, OSError):
            self._running = None
            self._end()
            number = -(process.returncode or 0)
            why = SIGNALS.get(cast(signal.Signals, number), f"it ends its process, {number}")
            said = why.format(seconds=seconds, memory=memory >> 20)
            logger.warning("%s: a text ended the tokenizer's process: %s", self._path, said)
            raise TokenizingError(said) from None
        if reply[:1] == b"E":
            raise TokenizingError(reply[1:].decode("utf-8", "replace"))
        return reply[1:]


class LimitedTokenizer:
    """As much of the library's tokenizer as is used, of one kind."""

    def __init__(
        self, vocabulary: tokenizers.Tokenizer, short: _Process, long: _Process, kind: Kind
    ) -> None:
        self._vocabulary = vocabulary
        self._short, self._long = short, long
        self._kind = kind

    @classmethod
    def of(cls, text: str, where: str) -> LimitedTokenizer:
        """Of a tokenizer.json; ModelFileError if it cannot be made."""
        packed = text.encode("utf-8", "surrogatepass")
        short, long = _Process(where, packed), _Process(where, packed)
        try:
            short.start()
            parts = json.loads(text) | dict.fromkeys(PARTS)
            vocabulary = tokenizers.Tokenizer.from_str(json.dumps(parts))
        except TokenizingError as error:
            raise ModelFileError(f"{where}: not a usable tokenizer: {error}") from None
        return cls(vocabulary, short, long, "whole")

    def of_kind(self, kind: Kind) -> LimitedTokenizer:
        """One that treats control tokens as text, and one for text inside a prompt."""
        return LimitedTokenizer(self._vocabulary, self._short, self._long, kind)

    def __getattr__(self, name: str) -> Any:
        # What belongs to the vocabulary: token_to_id, get_added_tokens_decoder and so on.
        return getattr(self._vocabulary, name)

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool) -> list[Found]:
        """The tokens of texts."""
        n_characters = sum(map(len, texts))
        message = {"kind": self._kind, "texts": list(texts), "special": add_special_tokens}
        process = self._short if n_characters <= SHORT_TEXTS else self._long
        answer = np.frombuffer(process.ask(message, n_characters), np.uint32)
        ends = np.cumsum(answer[: len(texts)]) + len(texts)
        return [Found(ids) for ids in np.split(answer, [len(texts), *ends[:-1]])[1:]]

    def encode(self, text: str, pair: str | None = None, add_special_tokens: bool = True) -> Found:
        """A text, or a pair of them, with what is around it."""
        both = [text] if pair is None else [text, pair]
        message = {"kind": self._kind, "both": both, "special": add_special_tokens}
        found = json.loads(self._short.ask(message, sum(map(len, both))))
        return Found(np.array(found[0], np.uint32), found[1], found[2])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, as the library has it."""
        message = {"kind": self._kind, "ids": list(ids)}
        return self._short.ask(message, len(ids)).decode("utf-8", "replace")

    def add_special_tokens(self, tokens: Sequence[tokenizers.AddedToken]) -> int:
        """Have words that are tokens be read as these."""
        for token in tokens:
            for process in (self._short, self._long):
                process.add_control(token.content)
        return 0


def _control(name: str) -> bytes:
    return json.dumps({"control": name, "seconds": TEXT_S}).encode()


def _popen(stdin: socket.socket) -> subprocess.Popen[bytes]:
    # What the library says when it dies is in one line of the log.
    variables = {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    module = "lanewise.text.tokenizer_process"
    return start_isolated(module, stdin, ENVIRONMENT, variables, is_silent=True)


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    try:
        # One that has died of a limit says so when it is asked what it died of.
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
