"""What a request says about the form of its answer, compiled into a grammar before it is queued."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request

from lanewise.api.errors import BadRequestError, UnavailableError
from lanewise.api.leaving import while_connected
from lanewise.api.schemas import ChatCompletionRequest, GenerationFields, Tool
from lanewise.api.state import INLINE_SIZE, ServerState
from lanewise.sandbox.lane import SandboxError
from lanewise.text.answers.calls import Tools, argument_schema
from lanewise.text.answers.families import AnswerFormat
from lanewise.text.answers.thinking import Start
from lanewise.text.grammar import CompiledGrammar, GrammarError, GrammarSource, measure

JSON_OBJECT = {"type": "object"}
RETRY_AFTER_S = 5
BLAME_S = 2.0  # to find out which of many tools cannot be used


async def grammar_of(
    fields: GenerationFields,
    state: ServerState,
    request: Request,
    within: Callable[[GrammarSource], GrammarSource] = lambda body: body,
) -> CompiledGrammar | None:
    """The grammar that an answer must obey; None if there is none.

    ``within`` makes the grammar of a whole answer from that of its content.
    """
    asked = list(_asked(fields))
    if not asked:
        return None
    if len(asked) > 1:
        first, second = asked[0][0], asked[1][0]
        raise BadRequestError(
            f"{second}: only one of {first} and {second} can be used", param=second
        )
    param, make, value = asked[0]
    work = compile_grammar(param, value, lambda: within(make(value)), state, request)
    return await while_connected(request, work)


async def compile_grammar(
    param: str, value: Any, make: Callable[[], GrammarSource], state: ServerState, request: Request
) -> CompiledGrammar:
    """Compile the grammar that ``make`` makes of ``value``, or say what is wrong with ``param``."""
    counts = state.engine.metrics.grammars
    most = state.budgets.max_grammar_bytes
    client = request.scope["client_number"]

    def source() -> GrammarSource:
        measure(value, most)
        made = make()
        made.check_size(most)
        return made

    try:
        made = await state.off_loop(_size(value), source)
        grammar, result = await state.grammars.get(made, client)
    except GrammarError as error:
        counts["refused"].inc()
        raise BadRequestError(f"{param}: {error}", param=param) from None
    except SandboxError as error:
        counts["refused"].inc()
        headers = {"retry-after": str(RETRY_AFTER_S)}
        raise UnavailableError(f"{param}: {error}", param=param, headers=headers) from None
    counts[result].inc()
    return grammar


def _size(value: Any) -> int:
    """More than can be done on the event loop, if the value is large."""
    try:
        return measure(value, INLINE_SIZE)
    except GrammarError:
        return INLINE_SIZE + 1


def check_tools(body: ChatCompletionRequest) -> None:
    """Raise if the answer is to have another form than that of calls."""
    if body.callable_tools and (asked := next(_asked(body), None)):
        raise BadRequestError(
            f"{asked[0]}: cannot be used together with tools, unless tool_choice is none",
            param=asked[0],
        )


def tools_of(body: ChatCompletionRequest) -> Tools:
    """The parameters of the functions that the answer may call."""
    return {tool.function.name: tool.function.parameters for tool in body.callable_tools}


async def call_grammar_of(
    body: ChatCompletionRequest,
    form: AnswerFormat,
    start: Start,
    state: ServerState,
    request: Request,
) -> CompiledGrammar:
    """The grammar of an answer that may call the tools of a request."""
    work = _compile_calls(body, form, start, state, request)
    return await while_connected(request, work)


async def _compile_calls(
    body: ChatCompletionRequest,
    form: AnswerFormat,
    start: Start,
    state: ServerState,
    request: Request,
) -> CompiledGrammar:
    tools = body.callable_tools
    parameters = tools_of(body)
    grammar_source = partial(
        form.call_grammar,
        parameters,
        state.tokenizer,
        start,
        required=body.tool_choice != "auto",
        parallel=body.parallel_tool_calls and body.tool_choice in ("auto", "required"),
    )
    try:
        return await compile_grammar("tools", parameters, grammar_source, state, request)
    except BadRequestError:
        with suppress(TimeoutError):
            async with asyncio.timeout(BLAME_S):
                for i, tool in enumerate(body.tools):  # which of them is it?
                    if tool in tools:
                        param = f"tools[{i}].function.parameters"
                        value = tool.function.parameters
                        await compile_grammar(
                            param, value, partial(_arguments, tool), state, request
                        )
        raise


def _arguments(tool: Tool) -> GrammarSource:
    return GrammarSource.from_json_schema(argument_schema(tool.function.parameters))


def for_template(tool: Tool) -> dict[str, Any]:
    """A tool as templates expect it."""
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
    grammar, regex = GrammarSource.from_grammar, GrammarSource.from_regex
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
