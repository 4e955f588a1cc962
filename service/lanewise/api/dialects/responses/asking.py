"""From a request to what is asked for."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lanewise.api.conversations import Tool, function_tool, left_out
from lanewise.api.dialects.openai_fields import (
    JSON_OBJECT,
    constraint_of,
    ending_of,
    sampling_of,
)
from lanewise.api.dialects.responses.items import JsonItem, as_messages, kept
from lanewise.api.dialects.responses.schema import (
    CustomTool,
    GrammarInput,
    ItemReference,
    Offered,
    ResponsesRequest,
)
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import (
    Ask,
    BestEffort,
    Constraint,
    Conversation,
    Delivery,
    Shown,
    ToolUse,
)
from lanewise.api.generation.custom_tools import as_function
from lanewise.api.schemas import MAX_NAME, MAX_NAMES
from lanewise.text.answers.values import TextGrammar
from lanewise.text.grammar import GrammarSource

LOGPROBS = "message.output_text.logprobs"


def own_items(body: ResponsesRequest, find: Callable[[str], JsonItem | None]) -> list[JsonItem]:
    """What the request itself brings; ``find`` knows the items that it refers to by their ids."""
    if isinstance(body.input, str):
        content = [{"type": "input_text", "text": body.input}]
        message = {"type": "message", "role": "user", "status": "completed", "content": content}
        return [message]
    return list(_resolved(body.input, find))


def _resolved(items: Sequence[Any], find: Callable[[str], JsonItem | None]) -> Iterator[JsonItem]:
    for i, item in enumerate(items):
        if not isinstance(item, ItemReference):
            yield kept(item)
            continue
        found = find(item.id)
        if found is None:
            raise not_kept(i, item.id)
        yield found


def not_kept(i: int, name: str) -> BadRequestError:
    """The error for an id of no item."""
    return BadRequestError(
        f"input[{i}].id: an item {name[:60]!r} is not kept here; accepted: those of responses that"
        " were stored lately, with the same API key",
        param=f"input[{i}].id",
    )


def ask_of(body: ResponsesRequest, items: Sequence[JsonItem]) -> Ask:
    """What a request asks for, whose whole conversation is ``items``."""
    foreign: set[str] = set()
    n_own = 1 if isinstance(body.input, str) else len(body.input)
    messages = as_messages(items, body.instructions, foreign, len(items) - n_own)
    if not messages:
        raise BadRequestError("input: there is nothing to answer", param="input")
    return Ask(
        input=Conversation(
            messages=messages,
            drops_oldest=body.truncation == "auto",
            makes_room=True,
            variables=body.chat_template_kwargs,
            effort=body.reasoning.effort,
            param="input",
            effort_param="reasoning.effort",
        ),
        model=body.model,
        tools=_tools_of(body),
        constraint=_constraint_of(body),
        sampling=sampling_of(body),
        ending=ending_of(body, body.max_output_tokens, "max_output_tokens"),
        shown=Shown(
            logprobs=_logprobs_of(body),
            special_tokens=not body.skip_special_tokens,
            receipt=body.receipt,
        ),
        delivery=Delivery(stream=body.stream),
        priority=body.priority,
        last_prompt_tokens=body.truncate_prompt_tokens,
        cache_salt=body.cache_salt,
        notices=(*left_out(body.every_tool), *_left_out_items(foreign)),
    )


def _left_out_items(kinds: set[str]) -> Iterator[str]:
    if kinds:
        shown = ", ".join(kind[:MAX_NAME] for kind in sorted(kinds)[:MAX_NAMES])
        yield f"input: items left out, for only their servers can tell of them: {shown}"


def _logprobs_of(body: ResponsesRequest) -> int | None:
    if body.top_logprobs is None and LOGPROBS not in body.include:
        return None
    return body.top_logprobs or 0


def _tools_of(body: ResponsesRequest) -> ToolUse:
    offered = list(body.offered)
    made = {one.name: _as_tool(one) for one in offered}
    callable_names = body.callable_names
    return ToolUse(
        listed=list(made.values()),
        callable=[tool for name, tool in made.items() if name in callable_names],
        required=body.requires_a_call,
        parallel=body.parallel_tool_calls and not _is_one(body),
        params=[one.param for one in offered],
    )


def _is_one(body: ResponsesRequest) -> bool:
    return body.requires_a_call and body.chosen is not None and len(body.chosen) == 1


def _as_tool(offered: Offered) -> Tool:
    tool = offered.tool
    if isinstance(tool, CustomTool):
        form = tool.format
        grammar = None
        if isinstance(form, GrammarInput):
            grammar = TextGrammar(form.syntax, form.definition)
        function = as_function(offered.name, tool.description, grammar)
        return Tool.model_validate({"type": "function", "function": function})
    # Names of namespaces and tools may be longer together than one is.
    return function_tool(offered.name, tool.description, tool.parameters, tool.strict)


def _constraint_of(body: ResponsesRequest) -> Constraint | None:
    form, other = body.text.format, constraint_of(body)
    if form.type == "text":
        return other
    if other is not None:
        raise BadRequestError(
            f"{other.param}: only one of text.format and {other.param} can be used",
            param=other.param,
        )
    if form.type == "json_object":
        return Constraint("text.format", GrammarSource.from_json_schema, JSON_OBJECT)
    make = GrammarSource.from_json_schema if form.strict else BestEffort()
    return Constraint("text.format.schema", make, form.json_schema)
