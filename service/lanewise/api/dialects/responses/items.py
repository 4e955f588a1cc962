"""Items of conversations: as clients send them, as they are kept, and as messages of a template.

Kept items are JSON objects in the form in which answers have them, each with an id.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lanewise.api.conversations import Message
from lanewise.api.dialects.responses.foreign import call_of, output_of, summary_of
from lanewise.api.dialects.responses.schema import (
    Content,
    CustomCallItem,
    CustomOutputItem,
    ForeignItem,
    FunctionCallItem,
    FunctionOutputItem,
    InputImagePart,
    InputItem,
    MessageItem,
    ReasoningItem,
    RefusalPart,
    full_name,
)
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.custom_tools import INPUT

JsonItem = dict[str, Any]

SUMMARY = "A summary of the conversation before:\n"
# What ids of items begin with, for people.
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def kept(item: InputItem) -> JsonItem:
    """An item as it is kept, with an id only if it came with one."""
    shown: JsonItem = {} if item.id is None else {"id": item.id}
    match item:
        case MessageItem(role=role, content=content):
            kind = "output_text" if role == "assistant" else "input_text"
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            shown |= {"type": "message", "role": role, "status": "completed"}
            shown["content"] = [_part(part, kind) for part in parts]
        case FunctionCallItem() | CustomCallItem():
            shown |= {"type": item.type, "call_id": item.call_id, "name": item.name}
            if item.namespace:
                shown["namespace"] = item.namespace
            if isinstance(item, FunctionCallItem):
                shown["arguments"] = item.arguments
            else:
                shown["input"] = item.input
        case FunctionOutputItem() | CustomOutputItem():
            output = item.output
            shown |= {"type": item.type, "call_id": item.call_id, "output": _kept_output(output)}
        case ReasoningItem(content=content):
            parts = [{"type": "reasoning_text", "text": part.text} for part in content]
            shown |= {"type": item.type, "summary": [], "content": parts}
        case ForeignItem():
            shown |= {"type": item.type, **(item.model_extra or {})}
    return shown


def _kept_output(output: Content) -> str | list[JsonItem]:
    """What a tool gave: a text, or parts where there are images."""
    if isinstance(output, str):
        return output
    if any(isinstance(part, InputImagePart) for part in output):
        return [_part(part, "input_text") for part in output]
    return "".join(_part(part, "input_text")["text"] for part in output)


def _part(part: Any, kind: str) -> JsonItem:
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.refusal}
    if isinstance(part, InputImagePart):
        return {"type": part.type, "image_url": part.image_url, "detail": part.detail}
    text = part["text"] if isinstance(part, dict) else part.text
    made = {"type": kind, "text": text}
    return made | {"annotations": [], "logprobs": []} if kind == "output_text" else made


def as_messages(
    items: Iterable[JsonItem], instructions: str | None, left_out: set[str], n_before: int = 0
) -> list[Message]:
    """What the chat template gets; ``left_out`` are types of items that it does not get.

    So many as ``n_before`` says are not this request's own.

    What the model has thought, said and called in one turn is one message. Instructions and the
    first messages of system and developer are one too: many templates take no more.
    """
    made: list[dict[str, Any]] = []
    if instructions:
        made.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}  # of calls, by their ids
    for i, item in enumerate(items, -n_before):
        place = f"input[{i}]" if i >= 0 else "previous_response_id"
        match item["type"]:
            case "message":
                _add_message(item, made, place)
            case "reasoning":
                text = "".join(part["text"] for part in item.get("content") or ())
                if text:
                    turn = _turn(made, "reasoning_content", "content", "tool_calls")
                    turn["reasoning_content"] = text
            case "function_call" | "custom_tool_call":
                call = _call(item)
                names[item["call_id"]] = call["function"]["name"]
                _turn(made).setdefault("tool_calls", []).append(call)
            case "function_call_output" | "custom_tool_call_output":
                made.append(_output(item, names, place))
            case kind if not _add_foreign(item, made, names):
                left_out.add(kind)
    return [Message.model_validate(message) for message in made]


def _add_foreign(item: JsonItem, made: list[dict[str, Any]], names: dict[str, str]) -> bool:
    """Tell what a tool did that this server does not have; whether there is anything to tell."""
    summary = summary_of(item)
    if summary is not None:
        made.append({"role": "user", "content": SUMMARY + summary})
        return True
    call, output, id_ = call_of(item), output_of(item), item.get("call_id")
    if call is not None:
        names[call.id], id_ = call.name, call.id
        function = {"name": call.name, "arguments": call.arguments}
        shown = {"id": call.id, "type": "function", "function": function}
        _turn(made).setdefault("tool_calls", []).append(shown)
    if output is not None and id_ in names:
        made.append({"role": "tool", "content": output, "tool_call_id": id_, "name": names[id_]})
        return True
    return call is not None


def _content(parts: Sequence[JsonItem], place: str) -> str | list[JsonItem]:
    """A message's content: a text, or parts where there are images."""
    texts = [part.get("text") or part.get("refusal", "") for part in parts]
    if all(part["type"] != "input_image" for part in parts):
        return "".join(texts)
    return [
        {
            "type": "image_url",
            "image_url": {"url": part["image_url"], "detail": part["detail"]},
            "place": f"{place}[{i}].image_url",
        }
        if part["type"] == "input_image"
        else {"type": "text", "text": text}
        for i, (part, text) in enumerate(zip(parts, texts, strict=True))
    ]


def _add_message(item: JsonItem, made: list[dict[str, Any]], place: str) -> None:
    text = _content(item["content"], f"{place}.content")
    role = item["role"]
    if isinstance(text, list) and role != "user":
        raise BadRequestError(
            f"{place}.content: images of role {role}; accepted: of user, and in results of tools",
            param=f"{place}.content",
        )
    is_system = role in ("system", "developer")
    if role == "assistant":
        _turn(made, "content", "tool_calls")["content"] = text
    elif is_system and len(made) == 1 and made[0]["role"] in ("system", "developer"):
        made[0]["content"] += f"\n\n{text}"
    else:
        made.append({"role": role, "content": text})


def _turn(made: list[dict[str, Any]], *taken: str) -> dict[str, Any]:
    """The model's message at the end, or a new one if that has one of the keys already."""
    last = made[-1] if made else {"role": "user"}
    if last["role"] != "assistant" or any(key in last for key in taken):
        made.append({"role": "assistant"})
    return made[-1]


def _call(item: JsonItem) -> dict[str, Any]:
    arguments = item.get("arguments")
    if arguments is None:
        arguments = json.dumps({INPUT: item["input"]}, ensure_ascii=False)
    name = full_name(item.get("namespace", ""), item["name"])
    function = {"name": name, "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _output(item: JsonItem, names: dict[str, str], place: str) -> dict[str, Any]:
    call_id = item["call_id"]
    if call_id not in names:
        raise BadRequestError(
            f"input: no tool call found for {item['type']} with call_id {call_id[:60]!r}",
            param="input",
        )
    named = {"tool_call_id": call_id, "name": names[call_id]}
    output = item["output"]
    content = output if isinstance(output, str) else _content(output, f"{place}.output")
    return {"role": "tool", "content": content, **named}


def with_ids(items: Sequence[JsonItem], answer: str, first: int = 0) -> Iterator[JsonItem]:
    """Items that all have an id, by which they can be referred to; ``answer`` has them."""
    for number, item in enumerate(items, first):
        yield item if "id" in item else {"id": item_id(item["type"], answer, number), **item}


def item_id(kind: str, answer: str, number: int) -> str:
    """The id of one of the items of an answer and of what was asked for it."""
    return f"{PREFIXES.get(kind, 'item')}_{answer}{number:04x}"
