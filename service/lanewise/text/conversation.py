"""Conversations as a chat template takes them: what it has no words for is said otherwise.

What a template can do is tried, once for each: it is a program, and its text tells little.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lanewise.text.answers.explained import as_text
from lanewise.text.chat_template import NULL, ChatTemplate, ChatTemplateError

Conversation = Sequence[Mapping[str, Any]]

SYSTEM, NAME, VALUE, RESULT = (
    "probesystem",
    "probename",
    "probevalue",
    "proberesult",
)  # no template says these
MAX_PROBE = 1 << 16  # characters that a template may make of a few words
PROBE_ID = "probe1234"  # of the form that all templates take
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "other",
        "description": "other",
        "parameters": {"type": "object", "properties": {}},
    },
}
# Characters that Unicode never assigns; those of ``control_tokens`` are others.
ENDS = [chr(code) for code in (0xFFFE, 0xFFFF, 0x1FFFE, 0x1FFFF, 0x2FFFE, 0x2FFFF)]


class Habits(NamedTuple):
    """What a template wants of conversations."""

    folds_system: bool  # it has no system role
    shape_calls: Callable[[Conversation], Conversation]  # so that it shows them


def render_conversation(
    template: ChatTemplate,
    messages: Conversation,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
    continued: bool = False,
    most_characters: int | None = None,
) -> str:
    """The text of a conversation, which ends within its last message if that is ``continued``.

    ChatTemplateError if the template refuses it or makes more characters of it.
    """
    habits = _habits_of(template, has_tools=tools is not None)
    if habits.folds_system:
        messages = fold_system(messages)
    messages = habits.shape_calls(messages)
    end = content = ""
    if continued and messages:
        # The place is found by a mark: the words may be anywhere, or none.
        end = _end_mark(messages)
        content = messages[-1].get("content") or ""
        # A template that strips messages shows the mark without the space.
        messages = [*messages[:-1], {**messages[-1], "content": f"{content}{end} "}]
    text = template.render_within(
        most_characters, messages, tools, add_generation_prompt, variables
    )
    return _up_to(text, end, content) if end else text


def _end_mark(messages: Conversation) -> str:
    text = json.dumps(messages, ensure_ascii=False, default=str)
    return next((mark for mark in ENDS if mark not in text), ENDS[0])


def _up_to(text: str, end: str, content: str) -> str:
    place = text.rfind(end)
    if place < 0:
        raise ChatTemplateError("the template does not show the last message as it is")
    before = text[:place]
    kept = content.rstrip()
    if text.startswith(f"{end} ", place) or not kept:
        return before
    return before.removesuffix(content[len(kept) :])


def fold_system(messages: Conversation) -> list[dict[str, Any]]:
    """A conversation whose system messages begin the user's next turn, or are one."""
    folded: list[dict[str, Any]] = []
    held: list[str] = []
    for message in messages:
        if message["role"] == "system":
            held.append(message.get("content") or "")
        elif held and message["role"] == "user":
            folded.append(
                {**message, "content": "\n\n".join([*held, message.get("content") or ""])}
            )
            held = []
        else:
            folded.append(dict(message))
    if held:
        folded.append({"role": "user", "content": "\n\n".join(held)})
    return folded


def _unchanged(messages: Conversation) -> Conversation:
    return messages


def _without_content(messages: Conversation) -> Conversation:
    """Calls in messages of their own, whose content is null."""
    shaped: list[Mapping[str, Any]] = []
    for message in messages:
        if not message.get("tool_calls"):
            shaped.append(message)
            continue
        if message.get("content"):
            shaped.append({key: value for key, value in message.items() if key != "tool_calls"})
        shaped.append({**message, "content": NULL})
    return shaped


def _with_json(messages: Conversation) -> Conversation:
    """Calls whose arguments are the JSON of an object."""
    return [
        {**message, "tool_calls": [_call_with_json(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _call_with_json(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return call
    arguments = json.dumps(function.get("arguments"), ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _without_content_with_json(messages: Conversation) -> Conversation:
    return _with_json(_without_content(messages))


SHAPES = (_unchanged, _without_content, _with_json, _without_content_with_json, as_text)


def _habits_of(template: ChatTemplate, *, has_tools: bool) -> Habits:
    known: dict[bool, Habits] = template.habits
    if has_tools not in known:
        known[has_tools] = _probe(template, [PROBE_TOOL] if has_tools else None)
    return known[has_tools]


def _probe(template: ChatTemplate, tools: list[dict[str, Any]] | None) -> Habits:
    def says(messages: Conversation, *words: str) -> bool:
        try:
            text = template.render_within(MAX_PROBE, messages, tools, True, {})
        except ChatTemplateError:
            return False
        return all(word in text for word in words)

    hello = {"role": "user", "content": "hello"}
    if not says([hello], "hello"):
        return Habits(False, _unchanged)  # it wants more than we know
    system = {"role": "system", "content": SYSTEM}
    function = {"name": NAME, "arguments": {"key": VALUE}}
    call = {"id": PROBE_ID, "type": "function", "function": function}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": PROBE_ID, "name": NAME, "content": RESULT}
    calls: list[dict[str, Any]] = [hello, asked, answered]
    shows = (shape for shape in SHAPES if says(shape(calls), NAME, VALUE, RESULT))
    return Habits(not says([system, hello], SYSTEM, "hello"), next(shows, _unchanged))
