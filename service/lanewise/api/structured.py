"""What a request says about the form of its answer, compiled into a grammar before it is queued."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from lanewise.api.errors import BadRequestError
from lanewise.api.schemas import ChatCompletionRequest, GenerationFields, Tool
from lanewise.api.state import ServerState
from lanewise.text.grammar import CompiledGrammar, GrammarError, GrammarSource
from lanewise.text.tool_calls import ToolFormat, argument_schema, call_grammar, tool_format

COMPILE_TIMEOUT_S = 10.0

JSON_OBJECT = {"type": "object"}


async def grammar_of(fields: GenerationFields, state: ServerState) -> CompiledGrammar | None:
    """The grammar that an answer must obey; None if there is none."""
    asked = list(_asked(fields))
    if not asked:
        return None
    if len(asked) > 1:
        first, second = asked[0][0], asked[1][0]
        raise BadRequestError(
            f"{second}: only one of {first} and {second} can be used", param=second
        )
    param, make, value = asked[0]
    return await compile_grammar(param, lambda: make(value), state)


async def compile_grammar(
    param: str, make: Callable[[], GrammarSource], state: ServerState
) -> CompiledGrammar:
    """Compile a grammar beside the event loop, or say what is wrong with ``param``."""
    counts = state.engine.metrics.grammars
    compiler = state.grammars

    def work() -> tuple[CompiledGrammar, str]:
        source = make()
        found = compiler.cached(source)
        return (found, "cached") if found else (compiler.compile(source), "compiled")

    working = asyncio.get_running_loop().run_in_executor(state.grammar_pool, work)
    # Nobody may be there any more to hear why it failed.
    working.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        grammar, result = await asyncio.wait_for(asyncio.shield(working), COMPILE_TIMEOUT_S)
    except (GrammarError, TimeoutError) as error:
        counts["refused"].inc()
        reason = str(error) or f"not compiled within {COMPILE_TIMEOUT_S:g} s"
        raise BadRequestError(f"{param}: {reason}", param=param) from None
    counts[result].inc()
    return grammar


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, how the model writes calls, and the grammar that makes it do so."""

    form: ToolFormat
    shown: list[dict[str, Any]]  # as templates expect them
    grammar: CompiledGrammar


async def tool_use_of(body: ChatCompletionRequest, state: ServerState) -> ToolUse | None:
    """What a request's tools mean for its prompt and its answer; None if none may be called."""
    tools = body.callable_tools
    if not tools or state.chat_template is None:
        return None
    if asked := next(_asked(body), None):
        raise BadRequestError(
            f"{asked[0]}: cannot be used together with tools, unless tool_choice is none",
            param=asked[0],
        )
    form = tool_format(state.chat_template)

    grammar_source = partial(
        call_grammar,
        form,
        {tool.function.name: tool.function.parameters for tool in tools},
        state.tokenizer,
        required=body.tool_choice != "auto",
        parallel=body.parallel_tool_calls and body.tool_choice in ("auto", "required"),
    )
    try:
        grammar = await compile_grammar("tools", grammar_source, state)
    except BadRequestError:
        for i, tool in enumerate(body.tools):  # which of them is it?
            if tool in tools:
                param = f"tools[{i}].function.parameters"
                await compile_grammar(param, partial(_arguments, tool), state)
        raise
    return ToolUse(form, [_for_template(tool) for tool in body.tools], grammar)


def _arguments(tool: Tool) -> GrammarSource:
    return GrammarSource.from_json_schema(argument_schema(tool.function.parameters))


def _for_template(tool: Tool) -> dict[str, Any]:
    function = tool.function
    parameters = function.parameters or {"type": "object", "properties": {}}
    shown = {
        "name": function.name,
        "description": function.description,
        "parameters": parameters,
    }
    return {"type": "function", "function": shown}


Asked = tuple[str, Callable[[Any], GrammarSource], Any]


def _asked(fields: GenerationFields) -> Iterator[Asked]:
    """Every way in which a request asks for a form: its field, and how its value is read."""
    schema, choices = GrammarSource.from_json_schema, GrammarSource.from_choices
    grammar, regex = GrammarSource.from_grammar, lambda text: GrammarSource("regex", text)
    form, asked = fields.response_format, fields.structured_outputs
    if form is not None and form.json_schema is not None:
        yield "response_format.json_schema.schema", schema, form.json_schema.json_schema
    elif form is not None and form.type == "json_object":
        yield "response_format", schema, JSON_OBJECT
    if asked is not None:
        if asked.json_object:
            yield "structured_outputs.json_object", schema, JSON_OBJECT
        yield from _given("structured_outputs.json", schema, asked.json_schema)
        yield from _given("structured_outputs.regex", regex, asked.regex)
        yield from _given("structured_outputs.choice", choices, asked.choice)
        yield from _given("structured_outputs.grammar", grammar, asked.grammar)
    yield from _given("guided_json", schema, fields.guided_json)
    yield from _given("guided_regex", regex, fields.guided_regex)
    yield from _given("guided_choice", choices, fields.guided_choice)
    yield from _given("guided_grammar", grammar, fields.guided_grammar)
    yield from _given("grammar", grammar, fields.grammar)
    yield from _given("json_schema", schema, fields.json_schema)


def _given(param: str, make: Callable[[Any], GrammarSource], value: Any) -> Iterator[Asked]:
    if value is not None:
        yield param, make, value
