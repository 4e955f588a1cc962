"""Small requests that make a server hold much: what they refer to, tokens, answers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from loadtests.exchange import Record, exchange, post
from loadtests.hostile.making import COMPLETION, completion

RESPONSES = "/v1/responses"
TIMEOUT_S = 120.0
ITEMS, ANSWERS, AT_ONCE = 16_000, 12, 16
EMPTY = {"type": "reasoning", "summary": []}
ASK = {"role": "user", "content": "Go on."}
RIGHT = (200, 400, 413)

Attack = Callable[[int, str, Record], Coroutine[None, None, None]]


async def references(port: int, key: str, record: Record) -> None:
    """Few bytes that refer to many kept items, none of which has a token."""
    names = []
    for _ in range(ANSWERS):
        body = {"input": [*[EMPTY] * ITEMS, ASK], "max_output_tokens": 1}
        answer = await exchange(port, post(RESPONSES, body, key), TIMEOUT_S)
        record.judge("16,000 items without tokens", answer, RIGHT)
        if answer.status == 200:
            names.append(answer.json()["id"])
    items = [{"type": "item_reference", "id": f"rs_{name[5:]}0001"} for name in names]
    short = {"max_output_tokens": 4, "store": False}
    attacks: list[tuple[str, dict[str, Any]]] = [
        ("an item of each of many answers", {"input": [*items, ASK]}),
        ("an item 16,000 times", {"input": [*items[-1:] * ITEMS, ASK]}),
        ("a conversation of 16,000 items", {"input": "on", "previous_response_id": names[-1]}),
        ("more and more items", {"input": [EMPTY] * 9_000, "previous_response_id": names[-1]}),
    ]
    for what, body in attacks:
        await _many(what, RESPONSES, body | short, port, key, record)


async def tokens(port: int, key: str, record: Record) -> None:
    """Megabytes of text on every path that cuts texts into tokens, and the way back."""
    words, word, spaces = "a b " * 2_000_000, "a" * 7_900_000, " " * 7_900_000
    bodies: list[tuple[str, str, Any]] = [
        ("two million words", "/tokenize", {"prompt": words}),
        ("their texts too", "/tokenize", {"content": words, "with_pieces": True}),
        ("one long word", "/tokenize", {"prompt": word}),
        ("spaces", "/tokenize", {"prompt": spaces}),
        ("a million tokens", "/detokenize", {"tokens": [300] * 1_000_000}),
        ("words to continue", COMPLETION, completion(prompt=words)),
        ("words to cut", COMPLETION, completion(prompt=words, truncate_prompt_tokens=8)),
        ("a prediction", COMPLETION, completion(suffix=words)),
        ("words to count", "/v1/messages/count_tokens", _message(words)),
        ("objects", COMPLETION, completion(anything=[[] for _ in range(60_000)])),
    ]
    for what, path, body in bodies:
        await _many(what, path, body, port, key, record, copies=4)


def _message(text: str) -> dict[str, Any]:
    return {"model": "", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}


async def _many(
    what: str,
    path: str,
    body: object,
    port: int,
    key: str,
    record: Record,
    copies: int = AT_ONCE,
) -> None:
    raw = post(path, body, key)
    sent = [exchange(port, raw, TIMEOUT_S) for _ in range(copies)]
    for answer in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(answer, BaseException):
            record.problems.append(f"{what}: {answer!r}")
        else:
            record.judge(what, answer, (*RIGHT, 404, 501))


MEMORY: dict[str, Attack] = {"references": references, "tokens": tokens}
