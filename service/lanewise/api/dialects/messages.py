"""``/v1/messages`` and ``/v1/messages/count_tokens``: conversations in Anthropic's form."""

from collections.abc import Iterator, Sequence
from typing import Any

from lanewise.api.conversations import Message, Tool, function_tool
from lanewise.api.dialects.messages_blocks import Block, ImageBlock, joined
from lanewise.api.dialects.messages_body import CountTokensRequest, MessagesRequest, ToolSpec
from lanewise.api.dialects.messages_wire import ERRORS, PING, MessagesWire
from lanewise.api.generation.ask import (
    Ask,
    Constraint,
    Conversation,
    Delivery,
    Ending,
    Sampling,
    Shown,
    ToolUse,
)
from lanewise.api.generation.dialect import Dialect
from lanewise.text.grammar import GrammarSource

# Templates know three efforts at most.
EFFORTS = {"xhigh": "high", "max": "high"}
# What templates call their switch for reasoning.
SWITCHES = ("enable_thinking", "thinking")


def ask_to_count(body: CountTokensRequest) -> Ask:
    """What a request's prompt is made of."""
    choice, effort, thinking = body.tool_choice, body.output_config.effort, body.thinking
    messages, continues = _conversation(body)
    return Ask(
        input=Conversation(
            messages=messages,
            continue_final_message=continues,
            variables=dict.fromkeys(SWITCHES, thinking.type != "disabled"),
            effort=None if effort is None else EFFORTS.get(effort, effort),
            thinking_budget=thinking.budget_tokens if thinking.type == "enabled" else None,
        ),
        model=body.model,
        tools=ToolUse(
            listed=[_tool(spec) for spec in body.functions],
            callable=[_tool(spec) for spec in body.callable_tools],
            required=choice.type != "auto",
            parallel=choice.type != "tool" and not choice.disable_parallel_tool_use,
        ),
        constraint=_constraint(body),
        shown=Shown(thinking=thinking.type != "disabled" and thinking.display != "omitted"),
        notices=tuple(body.notices),
    )


def ask(body: MessagesRequest) -> Ask:
    """What a request asks for."""
    made = ask_to_count(body)
    return Ask(
        input=made.input,
        model=made.model,
        tools=made.tools,
        constraint=made.constraint,
        sampling=Sampling(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        ending=Ending(max_tokens=body.max_tokens, param="max_tokens", strings=body.stop_sequences),
        shown=made.shown,
        delivery=Delivery(stream=body.stream),
        notices=made.notices,
    )


def _constraint(body: CountTokensRequest) -> Constraint | None:
    schema = GrammarSource.from_json_schema
    if (form := body.output_config.format) is not None:
        return Constraint("output_config.format.schema", schema, form.json_schema)
    if (form := body.output_format) is not None:
        return Constraint("output_format.schema", schema, form.json_schema)
    return None


def _tool(spec: ToolSpec) -> Tool:
    return function_tool(spec.name, spec.description, spec.input_schema, spec.strict)


def _conversation(body: CountTokensRequest) -> tuple[list[Message], bool]:
    """The messages for the template, and whether the answer goes on with the last."""
    turns: list[dict[str, Any]] = []
    for turn in _turns(body):
        before = turns[-1] if turns else None
        if before is not None and before["role"] == turn["role"] in ("user", "assistant"):
            _merge(before, turn)
        else:
            turns.append(turn)
    continues = turns[-1]["role"] == "assistant"
    if continues and not turns[-1]["content"] and len(turns) > 1:
        turns.pop()  # nothing to go on with
        continues = False
    return [Message(**turn) for turn in turns], continues


def _merge(before: dict[str, Any], turn: dict[str, Any]) -> None:
    """Two messages of one role are one: many templates want roles to alternate."""
    between = "\n" if turn["role"] == "user" else ""
    contents = before["content"], turn["content"]
    if all(isinstance(content, str) for content in contents):
        before["content"] = between.join(contents)
    else:
        before["content"] = [part for content in contents for part in _as_list(content)]
    for name in ("tool_calls", "reasoning_content"):
        if name in turn:
            before[name] = before[name] + turn[name] if name in before else turn[name]


def _turns(body: CountTokensRequest) -> Iterator[dict[str, Any]]:
    if system := joined(body.system):
        yield {"role": "system", "content": system}
    names: dict[str, str] = {}  # of tools, by the ids of their uses
    places = dict(_places_of_images(body))
    for turn in body.messages:
        blocks = turn.blocks
        if turn.role == "assistant":
            names.update((block.id, block.name) for block in blocks if block.type == "tool_use")
            yield _assistants(blocks)
        else:
            yield from _given(turn.role, blocks, names, places)


def _places_of_images(body: CountTokensRequest) -> Iterator[tuple[int, str]]:
    """What clients call images, by the identity of their blocks."""
    for i, turn in enumerate(body.messages):
        for j, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
            place = f"messages[{i}].content[{j}]"
            inner = block.content if isinstance(block, Block) else ""
            if isinstance(block, ImageBlock):
                yield id(block), f"{place}.source"
            for k, one in enumerate(inner if isinstance(inner, list) else ()):
                if isinstance(one, ImageBlock):
                    yield id(one), f"{place}.content[{k}].source"


def _content(blocks: Sequence[Any], places: dict[int, str]) -> str | list[dict[str, Any]]:
    """Texts and images in a message; lines where there are texts alone."""
    if not any(isinstance(block, ImageBlock) for block in blocks):
        return "\n".join(block.text for block in blocks)
    return [
        {"type": "image_url", "image_url": block.url, "place": places[id(block)]}
        if isinstance(block, ImageBlock)
        else {"type": "text", "text": block.text}
        for block in blocks
    ]


def _as_list(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _assistants(blocks: Sequence[Block]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(block.text for block in blocks),
    }
    if thinking := "".join(block.thinking for block in blocks):
        made["reasoning_content"] = thinking
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": block.input},
        }
        for block in blocks
        if block.type == "tool_use"
    ]
    return made | {"tool_calls": calls} if calls else made


def _given(
    role: str, blocks: Sequence[Any], names: dict[str, str], places: dict[int, str]
) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own, between which texts and images are."""
    others: list[Any] = []
    for block in blocks:
        if block.type != "tool_result":
            others.append(block)
            continue
        if others:
            yield {"role": role, "content": _content(others, places)}
            others = []
        given = block.content
        content = given if isinstance(given, str) else _content(given, places)
        made = {"role": "tool", "tool_call_id": block.tool_use_id}
        if block.tool_use_id in names:
            made["name"] = names[block.tool_use_id]
        # Templates have no other place for it.
        if block.is_error and isinstance(content, str):
            content = f"Error: {content}"
        elif block.is_error:
            content = [{"type": "text", "text": "Error:"}, *_as_list(content)]
        yield made | {"content": content}
    if others or not blocks:
        yield {"role": role, "content": _content(others, places)}


MESSAGES = Dialect(
    name="create_message",
    summary="Answer a conversation, in Anthropic's form",
    body=MessagesRequest,
    ask=ask,
    wire=MessagesWire,
    keep_alive=PING,
    errors=ERRORS,
)
COUNT_TOKENS = Dialect(
    name="count_message_tokens",
    summary="Count the tokens of a conversation, in Anthropic's form",
    body=CountTokensRequest,
    ask=ask_to_count,
    wire=MessagesWire,
    errors=ERRORS,
)
