"""What a request says about the form of its answer, compiled into a grammar before it is queued."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request

from lanewise.api.errors import BadRequestError, UnavailableError
from lanewise.api.leaving import while_connected
from lanewise.api.notices import add_notice
from lanewise.api.schemas import ChatCompletionRequest, FunctionSpec, GenerationFields, Tool
from lanewise.api.state import INLINE_SIZE, ServerState
from lanewise.sandbox.lane import SandboxError
from lanewise.text.answers.calls import Parameters, Tools, argument_schema
from lanewise.text.answers.families import AnswerFormat
from lanewise.text.answers.thinking import Start
from lanewise.text.grammar import CompiledGrammar, GrammarError, GrammarSource, measure
from lanewise.text.json_schema import relaxed

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
    grammar = await while_connected(request, work)
    if isinstance(make, BestEffort):
        for problem in make.left_out:
            add_notice(request.scope, f"{param}: {problem}")
    return grammar


class BestEffort:
    """Makes the grammar of a schema without what cannot be enforced, which it remembers."""

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def __call__(self, schema: Any) -> GrammarSource:
        """The grammar of what is left."""
        made, self.left_out = relaxed(schema)
        return GrammarSource.from_json_schema(made)


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


class ToolArguments:
    """The arguments of tools as far as they can be enforced: for strict ones, as they are."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self.free: dict[str, str] = {}  # tools whose arguments may be any object, and why
        self.left_out: dict[str, list[str]] = {}  # what is not enforced, by tool

    def enforced(self) -> Tools:
        """The parameters that the answer is held to."""
        return {tool.function.name: self.of(tool.function) for tool in self._tools}

    def of(self, function: FunctionSpec) -> Parameters:
        """The parameters that the arguments of one of them are held to."""
        if function.strict or function.parameters is None:
            return function.parameters
        if function.name in self.free:
            self.left_out[function.name] = [self.free[function.name]]
            return {"type": "object"}
        parameters: Parameters
        parameters, self.left_out[function.name] = relaxed(function.parameters)
        return parameters


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
    arguments = ToolArguments(tools)

    async def compile_calls() -> CompiledGrammar:
        def source() -> GrammarSource:
            return form.call_grammar(
                arguments.enforced(),
                state.tokenizer,
                start,
                required=body.tool_choice != "auto",
                parallel=body.parallel_tool_calls and body.tool_choice in ("auto", "required"),
            )

        return await compile_grammar("tools", tools_of(body), source, state, request)

    try:
        grammar = await compile_calls()
    except BadRequestError:
        with suppress(TimeoutError):
            async with asyncio.timeout(BLAME_S):
                for i, tool in enumerate(body.tools):  # which of them is it?
                    if tool in tools:
                        await _check_arguments(i, tool, arguments, state, request)
        if not arguments.free:
            raise
        grammar = await compile_calls()
    for i, tool in enumerate(body.tools):
        for problem in arguments.left_out.get(tool.function.name, ()):
            add_notice(request.scope, f"tools[{i}].function.parameters: {problem}")
    return grammar


async def _check_arguments(
    i: int, tool: Tool, arguments: ToolArguments, state: ServerState, request: Request
) -> None:
    """Raise if a strict tool cannot be used; set any other free that cannot."""
    name = tool.function.name

    def source() -> GrammarSource:
        return GrammarSource.from_json_schema(argument_schema(arguments.of(tool.function)))

    param = f"tools[{i}].function.parameters"
    try:
        await compile_grammar(param, tool.function.parameters, source, state, request)
    except BadRequestError as error:
        if tool.function.strict:
            raise
        arguments.free[name] = f"not enforced at all: {str(error).removeprefix(f'{param}: ')}"


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
        named = form.json_schema
        make = schema if named.strict else BestEffort()
        yield "response_format.json_schema.schema", make, named.json_schema
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
