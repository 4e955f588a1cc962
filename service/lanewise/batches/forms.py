"""How the answer to a request of a batch is written, in OpenAI's words and in Anthropic's."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OK = 200


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request was answered: a status of HTTP and JSON."""

    status: int
    body: bytes
    request_id: str

    @property
    def is_good(self) -> bool:
        """Whether it is what was asked for, and no error."""
        return self.status == OK


@dataclass(frozen=True, slots=True)
class Form:
    """How a dialect writes answers. Nothing that it writes has a line break but at its end."""

    replied: Callable[[str, Reply], bytes]
    unanswered: Callable[[str, str], bytes]  # of a custom_id and EXPIRED or CANCELLED
    is_good: Callable[[dict[str, Any]], bool]  # of a line that was written
    is_unanswered: Callable[[dict[str, Any]], bool]
    splits: bool  # errors have a file of their own
    tells_cancelled: bool  # requests that a cancelled batch has not answered have lines too


EXPIRED, CANCELLED = "expired", "cancelled"
WHY = {
    EXPIRED: "This request could not be executed before the completion window expired.",
    CANCELLED: "The batch was cancelled before this request was executed.",
}


def _joined(custom_id: str, rest: bytes) -> bytes:
    # Line breaks of JSON are between its values: those in texts are written as \n.
    return b'{"custom_id":%b,%b}\n' % (
        json.dumps(custom_id).encode(),
        rest.replace(b"\n", b" ").replace(b"\r", b" "),
    )


def _openai_replied(custom_id: str, reply: Reply) -> bytes:
    return _openai(
        custom_id,
        b'"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null'
        % (reply.status, json.dumps(reply.request_id).encode(), reply.body),
    )


def _openai_unanswered(custom_id: str, why: str) -> bytes:
    error = json.dumps({"code": f"batch_{why}", "message": WHY[why]})
    return _openai(custom_id, b'"response":null,"error":%b' % error.encode())


def _openai(custom_id: str, rest: bytes) -> bytes:
    line = _joined(custom_id, rest)
    return b'{"id":"batch_req_%b",' % secrets.token_hex(12).encode() + line[1:]


def _anthropic_replied(custom_id: str, reply: Reply) -> bytes:
    kind, name = (b"succeeded", b"message") if reply.is_good else (b"errored", b"error")
    return _joined(custom_id, b'"result":{"type":"%b","%b":%b}' % (kind, name, reply.body))


def _anthropic_unanswered(custom_id: str, why: str) -> bytes:
    kind = b"expired" if why == EXPIRED else b"canceled"
    return _joined(custom_id, b'"result":{"type":"%b"}' % kind)


OPENAI = Form(
    replied=_openai_replied,
    unanswered=_openai_unanswered,
    is_good=lambda said: (said.get("response") or {}).get("status_code") == OK,
    is_unanswered=lambda said: said.get("response") is None,
    splits=True,
    tells_cancelled=False,
)
ANTHROPIC = Form(
    replied=_anthropic_replied,
    unanswered=_anthropic_unanswered,
    is_good=lambda said: (said.get("result") or {}).get("type") == "succeeded",
    is_unanswered=lambda said: (said.get("result") or {}).get("type") in ("expired", "canceled"),
    splits=False,
    tells_cancelled=True,
)
FORMS = {"openai": OPENAI, "anthropic": ANTHROPIC}
