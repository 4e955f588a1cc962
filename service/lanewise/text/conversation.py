"""Conversations as a chat template takes them: what it has no words for is said otherwise.

What a template can do is tried, once for each order of turns: it is a program, and its text tells
little. It is tried with conversations of the same order that have a word in place of each text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lanewise.text.answers.explained import as_text
from lanewise.text.chat_template import NULL, REASONING_NAMES, ChatTemplate, ChatTemplateError
from lanewise.text.image_parts import ImageMarks, as_parts
from lanewise.text.template_error import TextTooLongError
from lanewise.text.turns import ORDERS, one_call_each, unchanged

Conversation = Sequence[Mapping[str, Any]]
Shape = Callable[[Conversation], Conversation]

MAX_PROBE = 1 << 16  # characters that a template may make of a few words
MAX_TURNS = 256  # that are tried; of longer conversations the beginning and the end
HALF = MAX_TURNS // 2
MAX_KNOWN = 256  # orders of which is remembered what a template wants
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
REPEATED = re.compile(r"((.{1,4})\2)\2+", re.DOTALL)
# An order of turns is a text: system, user, assistant, a tool's result, and calls, one or several
# (p), with words beside them in capitals.
ROLES = {"s": "system", "u": "user", "t": "tool"}
CALLS, CALL = "cpCP", re.compile("[pCP]")
REGULAR = re.compile(r"s?(u(ct+)*a?)*")  # what every template is made for
PARTS = ("name", "value")  # of a call


def render_conversation(
    template: ChatTemplate,
    messages: Conversation,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
    continued: bool = False,
    most_characters: int | None = None,
    images: ImageMarks | None = None,
) -> str:
    """The text of a conversation, which ends within its last message if that is ``continued``.

    ChatTemplateError if the template refuses it or makes more characters of it, or if it writes
    another number of images than there are.
    """

    def rendered(messages: Conversation) -> str:
        end = content = ""
        if continued and messages:
            # The place is found by a mark: the words may be anywhere, or none.
            end = _end_mark(messages)
            content = messages[-1].get("content") or ""
            # A template that strips messages shows the mark without the space.
            messages = [*messages[:-1], {**messages[-1], "content": f"{content}{end} "}]

        def written(messages: Conversation) -> str:
            return template.render_within(
                most_characters, messages, tools, add_generation_prompt, variables
            )

        text = written(messages) if images is None else images.written(messages, written)
        return _up_to(text, end, content) if end else text

    best, *others = _shapes(template, messages, has_tools=tools is not None)
    try:
        return rendered(best(messages))
    except TextTooLongError:
        raise
    except ChatTemplateError:
        # Perhaps it is the order of these texts that it refuses, and not that of the words.
        for shape in others:
            try:
                return rendered(shape(messages))
            except ChatTemplateError:
                continue
        raise


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


def _without_content(messages: Conversation) -> Conversation:
    """Calls in messages of their own, whose content is null."""
    shaped: list[Mapping[str, Any]] = []
    for message in messages:
        if not message.get("tool_calls"):
            shaped.append(message)
            continue
        if message.get("content"):
            shaped.append({key: value for key, value in message.items() if key != "tool_calls"})
            message = {key: one for key, one in message.items() if key not in REASONING_NAMES}
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


NATIVE: tuple[Shape, ...] = (
    unchanged,
    _without_content,
    _with_json,
    _without_content_with_json,
)


def _chain(*shapes: Shape) -> Shape:
    def shaped(messages: Conversation) -> Conversation:
        for shape in shapes:
            messages = shape(messages)
        return messages

    return shaped


def _shapes(template: ChatTemplate, messages: Conversation, *, has_tools: bool) -> Sequence[Shape]:
    """The shapes that a conversation may get, the one first in which all of it is shown."""
    # Turns over and over are as one turn twice.
    order = REPEATED.sub(r"\1", "".join(map(_code, messages)))
    order = order if len(order) <= MAX_TURNS else order[:HALF] + order[-HALF:]
    known: dict[Any, Any] = template.habits
    found = known.get((has_tools, order))
    if found is None:
        if len(known) >= MAX_KNOWN:
            known.clear()
        found = known[has_tools, order] = _Trial(template, has_tools).shapes(order)
    return found


def _code(message: Mapping[str, Any]) -> str:
    """One character for what a template may have a rule about."""
    role = message["role"]
    if role in ("tool", "function"):
        return "t"
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        code = "p" if len(calls) > 1 else "c"
        return code.upper() if message.get("content") else code
    return str(role)[:1]


class _Word(NamedTuple):
    text: str
    place: str  # message | call | beside, of a call


class _Trial:
    """Conversations of words, which a template is tried with."""

    def __init__(self, template: ChatTemplate, has_tools: bool) -> None:
        self._template = template
        self._tools = [PROBE_TOOL] if has_tools else None

    def shapes(self, order: str) -> Sequence[Shape]:
        """All that is worth trying with an order of turns, the best first."""
        messages, words = _words(order)
        call_shapes: list[Shape] = [unchanged]
        if set(order) & set(CALLS + "t"):
            own, tells_beside = self._call_shape(order)
            call_shapes = [own, as_text]
            if not tells_beside:
                words = [word for word in words if word.place != "beside"]
        shapes = [_chain(calls, turns) for calls in call_shapes for turns in ORDERS]
        in_order = REGULAR.fullmatch(CALL.sub("c", order)) is None
        best, most = shapes[0], -1
        for shape in shapes:
            score = self._score(shape, messages, words, in_order=in_order)
            if score > most:
                best, most = shape, score
            if score == len(words):
                break
        if most < len(words):  # perhaps it reads lists of parts alone
            for shape in shapes:
                listed = _chain(shape, as_parts)
                score = self._score(listed, messages, words, in_order=in_order)
                if score > most:
                    best, most, shapes = listed, score, [listed, *shapes]
                    break
        return [best, *(shape for shape in shapes if shape is not best)]

    def _call_shape(self, order: str) -> tuple[Shape, bool]:
        """How the template takes calls and results, and whether it tells words beside a call."""
        parallel, beside = bool(set(order) & set("pP")), bool(set(order) & set("CP"))
        code = ("cp", "CP")[beside][parallel]
        messages, words = _words(f"u{code}{'tt' if parallel else 't'}au")
        bare = [word for word in words if word.place != "beside"]
        shapes = [s for one in NATIVE for s in (one, _chain(one_call_each, one))[: 1 + parallel]]
        for wanted in [words, bare] if beside else [words]:
            for shape in [*shapes, as_text] if wanted is bare or not beside else shapes:
                if self._score(shape, messages, wanted, in_order=False) == len(wanted):
                    return shape, wanted is words
        return unchanged, False

    def _score(
        self, shape: Shape, messages: Conversation, words: Sequence[_Word], *, in_order: bool
    ) -> int:
        """How many of the words are told; -1 if the template refuses them."""
        try:
            text = self._template.render_within(MAX_PROBE, shape(messages), self._tools, True, {})
        except ChatTemplateError:
            return -1
        told = [word for word in words if word.text in text]
        places = [text.index(word.text) for word in told if word.place == "message"]
        return len(told) - (in_order and places != sorted(places))


def _words(order: str) -> tuple[list[dict[str, Any]], list[_Word]]:
    """A conversation of an order, and its words; no template says these."""
    messages: list[dict[str, Any]] = []
    words: list[_Word] = []
    open_ids: list[str] = []
    for i, code in enumerate(order):
        message: dict[str, Any] = {"role": ROLES.get(code, "assistant"), "content": ""}
        if code not in "cp":
            message["content"] = f"probeword{i}end"
            words.append(_Word(message["content"], "beside" if code in CALLS else "message"))
        if code in CALLS:
            names = [f"{i:03}{n}" for n in range(2 if code in "pP" else 1)]
            message["tool_calls"] = [_probe_call(name) for name in names]
            words += [_Word(f"probe{kind}{n}end", "call") for n in names for kind in PARTS]
            open_ids = [call["id"] for call in message["tool_calls"]]
        elif code == "t":
            message["tool_call_id"] = open_ids.pop(0) if open_ids else "probe0000"
            message["name"] = "probename"
        messages.append(message)
    return messages, words


def _probe_call(name: str) -> dict[str, Any]:
    function = {"name": f"probename{name}end", "arguments": {"key": f"probevalue{name}end"}}
    # Of the form that all templates take.
    return {"id": f"probe{name[-4:]}", "type": "function", "function": function}
