"""Asks an OpenAI-compatible server for the next message of a conversation, piece by piece."""

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONNECT_S = 10.0
SOON_S = 0.001  # what arrived within it came together, and says nothing about speed
SILENT_S = 600.0  # a long prompt on a slow machine takes minutes before its first token


class ChatError(Exception):
    """A server that cannot be reached, or an error that it told; the message is for people."""


@dataclass(slots=True)
class Piece:
    """What has arrived: text of the answer, or of the thoughts before it."""

    text: str = ""
    reasoning: str = ""


@dataclass(slots=True)
class Numbers:
    """What an answer took; times in seconds, ``first_s`` from the request to the first token."""

    began: float = field(default_factory=time.monotonic)
    first_s: float = 0.0
    rest_s: float = 0.0
    pieces: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    warnings: list[str] = field(default_factory=list)  # of the server, about the request

    def count(self) -> None:
        """A piece has come."""
        since = time.monotonic() - self.began
        if self.pieces == 0:
            self.first_s = since
        self.rest_s = since - self.first_s
        self.pieces += 1

    def __str__(self) -> str:
        """One line; counts are the server's where it told them."""
        tokens = self.usage.get("completion_tokens", self.pieces)
        parts = [f"{tokens} tokens"]
        if tokens > 1 and self.rest_s > SOON_S:
            parts.append(f"{(tokens - 1) / self.rest_s:.1f} tokens/s")
        if self.pieces:
            parts.append(f"first after {1000 * self.first_s:.0f} ms")
        if "prompt_tokens" in self.usage:
            cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            parts.append(f"prompt {self.usage['prompt_tokens']}, {cached} of them cached")
        if self.reason == "length":
            parts.append("cut: the most tokens there may be")
        return ", ".join(parts)


class ChatClient:
    """One server: ``url`` as users write it, with or without /v1 at its end."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            self._port = parts.port
        except ValueError:
            raise ChatError(f"{url}: not a port; accepted: http://HOST:PORT") from None
        if not parts.hostname:
            raise ChatError(f"{url}: no host; accepted: http://HOST:PORT")
        self.url = url
        self.key = key
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        path = parts.path.rstrip("/")
        self._base = path if path.endswith("/v1") else path + "/v1"
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def models(self) -> list[dict[str, Any]]:
        """What the server says of the models that are served."""
        with self._asked("GET", "/models") as answer:
            found = _object(answer.read())
        models = found.get("data")
        if not isinstance(models, list):
            raise ChatError(f"{self.url}: the answer to /v1/models is no list of models")
        return [model for model in models if isinstance(model, dict)]

    def stream(self, body: Mapping[str, Any], numbers: Numbers) -> Iterator[Piece]:
        """The pieces of an answer; leaving the loop hangs up, which stops the server's work."""
        ask = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._asked("POST", "/chat/completions", json.dumps(ask).encode()) as answer:
            numbers.warnings += answer.headers.get_all("x-lanewise-warning") or ()
            while line := answer.readline():
                name, _, data = line.decode("utf-8", "replace").partition(":")
                if name != "data":
                    continue
                if data.strip() == "[DONE]":
                    return
                if piece := _piece(_object(data), numbers):
                    numbers.count()
                    yield piece
        raise ChatError("the answer ended in the middle")

    @contextmanager
    def _asked(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(SILENT_S)
            connection.request(method, self._base + path, body, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ChatError(_error_of(answer))
            yield answer
        except ssl.SSLError as error:
            if error.reason == "WRONG_VERSION_NUMBER":
                plain = self.url.replace("https://", "http://", 1)
                raise ChatError(f"{self.url}: there is no TLS; did you mean {plain}?") from None
            raise ChatError(f"{self.url}: {error.reason or error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ChatError(f"{self.url}: {reason}") from None
        finally:
            connection.close()


def _piece(event: Mapping[str, Any], numbers: Numbers) -> Piece | None:
    if "error" in event:
        raise ChatError(_message_of(event) or "the server failed")
    if event.get("usage"):
        numbers.usage = event["usage"]
    for choice in event.get("choices") or ():
        numbers.reason = choice.get("finish_reason") or numbers.reason
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if delta.get("content") or reasoning:
            return Piece(delta.get("content") or "", reasoning)
    return None


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ChatError("the server answers with something that is not a JSON object")
    return value


def _error_of(answer: http.client.HTTPResponse) -> str:
    """What an answer with another status than 200 says."""
    try:
        message = _message_of(_object(answer.read()))
    except ChatError:
        message = None
    return message or f"status {answer.status} {answer.reason}"


def _message_of(body: Mapping[str, Any]) -> str | None:
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else None
