"""Tools, calls and results in messages, for templates that know none or look for them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

EXPLANATION = """You may call functions to answer. They are listed within <tools></tools> tags:
<tools>
{tools}
</tools>
To call a function, write its name and arguments as a JSON object within <tool_call></tool_call> \
tags:
<tool_call>
{{"name": <function name>, "arguments": <arguments>}}
</tool_call>"""


def explained(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A conversation with its tools, calls and results as text, for a template without tools."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    shown = as_text(messages)
    # Not every template has a system role.
    first = next((m for m in shown if m["role"] in ("system", "user")), shown[0])
    parts = EXPLANATION.format(tools=listed), first["content"]
    first["content"] = "\n\n".join(parts[::-1] if first["role"] == "system" else parts)
    return shown


def with_tools_in_system(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A conversation whose system message has the functions, as JSON, beside its content."""
    functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    shown = [dict(message) for message in messages]
    if shown[0]["role"] != "system":
        shown.insert(0, {"role": "system", "content": ""})
    shown[0]["tools"] = functions
    return shown


def as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A conversation with its calls and results as text.

    Results are what the user says, in one turn with each other and with the user's own words after
    them: some templates want turns to alternate.
    """
    shown: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        is_result = message["role"] in ("tool", "function")
        made = _result(message) if is_result else _calls(message)
        if after_result and made["role"] == "user":
            shown[-1]["content"] += f"\n{made.get('content') or ''}"
        else:
            shown.append(made)
        after_result = is_result
    return shown


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    text = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
    return {"role": "user", "content": text}


def _calls(message: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(message)
    for call in shown.pop("tool_calls", None) or ():
        function = call.get("function", call)
        names = {key: function.get(key) for key in ("name", "arguments")}
        text = f"<tool_call>\n{json.dumps(names, ensure_ascii=False)}\n</tool_call>"
        shown["content"] = "\n".join(filter(None, (shown.get("content"), text)))
    return shown
