"""Orders of roles that templates take: what must be is joined, and every text keeps its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lanewise.text.chat_template import NULL, REASONING_NAMES

Turn = Mapping[str, Any]
Turns = Sequence[Turn]
BETWEEN = "\n\n"  # texts that become one turn
EMPTY_USER = {"role": "user", "content": ""}
# What Claude Code tells its maker's servers before its prompt: another text in each session.
SESSION = re.compile(r"(x-anthropic-[a-z-]+:[^\n]*(\n+|$))+")


def without_session(messages: Turns) -> Turns:
    """A conversation that begins alike in each session, so that what is cached of it is found."""
    made: list[Turn] = []
    is_told = False
    for message in messages:
        found = SESSION.match(_text(message)) if message["role"] == "system" else None
        if found is None:
            made.append(message)
            continue
        is_told = True
        if rest := _text(message)[found.end() :]:
            made.append({**message, "content": rest})
    return _machine_first(made) if is_told else made


def _machine_first(messages: list[Turn]) -> list[Turn]:
    """The system's words right behind the user's first ones go before these.

    Claude Code tells there of the machine, the same in each session. Of no other client is it known
    that such words are not about the user's.
    """
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    if first == len(messages) or messages[first]["role"] != "user":
        return messages
    end = first + 1
    while end < len(messages) and messages[end]["role"] == "system":
        end += 1
    return [*messages[:first], *messages[first + 1 : end], messages[first], *messages[end:]]


def unchanged(messages: Turns) -> Turns:
    """A conversation as it is."""
    return messages


def with_system_first(messages: Turns) -> Turns:
    """Words of the system's at the beginning are one message; later ones are the user's."""
    n_first = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    first = [_joined(messages[:n_first])] if n_first else []
    return [*first, *without_system(messages[n_first:])]


def without_system(messages: Turns) -> list[Turn]:
    """All words of the system's are the user's, in one turn with the user's own beside them."""
    made: list[Turn] = []
    is_open = False  # the last turn is the system's words so far
    for message in messages:
        is_system = message["role"] == "system"
        turn = {**message, "role": "user"} if is_system else message
        after_user = bool(made) and made[-1]["role"] == turn["role"] == "user"
        if after_user and (is_system or is_open):
            made[-1] = _joined((made[-1], turn))
        else:
            made.append(turn)
        is_open = is_system and (is_open or not after_user)
    return made


def alternating(messages: Turns) -> Turns:
    """Turns of one role in a row are one, the user is first, and nothing stands behind a result."""
    made: list[Turn] = []
    for message in messages:
        before = made[-1] if made else None
        role = message["role"]
        if role == "assistant" and (before is None or before["role"] == "system"):
            made.append(EMPTY_USER)
        elif before is not None and _become_one(before, message):
            made[-1] = _joined((before, message))
            continue
        made.append(message)
    if made and all(message["role"] == "system" for message in made):
        made[-1] = {**made[-1], "role": "user"}  # somebody must ask
    return made


def _become_one(before: Turn, message: Turn) -> bool:
    if before["role"] == "tool" and message["role"] == "user":
        return True
    if before["role"] != message["role"] or before["role"] == "tool":
        return False
    # Words behind a call stay behind it.
    return not (before.get("tool_calls") and _text(message))


def _text(message: Turn) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _joined(messages: Sequence[Turn]) -> Turn:
    """One turn of several; what else they have is the first's that has it."""
    if len(messages) == 1:
        return messages[0]
    made: dict[str, Any] = {}
    for message in reversed(messages):
        made |= message
    made["content"] = BETWEEN.join(filter(None, map(_text, messages)))
    for name in REASONING_NAMES:
        texts = [text for m in messages if isinstance(text := m.get(name), str)]
        if texts:
            made[name] = BETWEEN.join(filter(None, texts))
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    if calls:
        made["tool_calls"] = calls
        made["content"] = made["content"] or _last(m.get("content") for m in messages)
    return made


def _last(contents: Iterable[Any]) -> Any:
    """What stands where calls have no words: a text, or nothing at all."""
    return NULL if any(content is NULL for content in contents) else ""


def _alternating_with_system_first(messages: Turns) -> Turns:
    return alternating(with_system_first(messages))


def _alternating_without_system(messages: Turns) -> Turns:
    return alternating(without_system(messages))


# From what changes least.
ORDERS: tuple[Callable[[Turns], Turns], ...] = (
    unchanged,
    with_system_first,
    without_system,
    _alternating_with_system_first,
    _alternating_without_system,
)


def one_call_each(messages: Turns) -> Turns:
    """Calls of one turn as turns of their own, each before its results."""
    made: list[Turn] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or len(calls) < 2:
            made.append(message)
            continue
        end = position
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        made += _apart(message, calls, messages[position:end])
        position = end
    return made


def _apart(message: Turn, calls: Sequence[Any], results: Sequence[Turn]) -> list[Turn]:
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
    of_call: list[list[Turn]] = [[] for _ in calls]
    for i, result in enumerate(results):
        given = result.get("tool_call_id")
        place = ids.index(given) if given is not None and given in ids else i
        of_call[min(place, len(calls) - 1)].append(result)
    bare = {"role": message["role"], "content": _last((message.get("content"),))}
    made: list[Turn] = []
    for i, (call, own) in enumerate(zip(calls, of_call, strict=True)):
        made += [{**(bare if i else message), "tool_calls": [call]}, *own]
    return made
