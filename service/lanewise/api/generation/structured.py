"""What a request says about the form of its answer, compiled into a grammar before it is queued."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request

from lanewise.api.conversations import FunctionSpec, Tool
from lanewise.api.errors import BadRequestError, UnavailableError
from lanewise.api.generation.ask import Ask, BestEffort, Constraint, Conversation, ToolUse
from lanewise.api.generation.leaving import while_connected
from lanewise.api.generation.rendering import Rendered
from lanewise.api.observing.notices import add_notice
from lanewise.api.shared.state import RETRY_AFTER_S, ServerState
from lanewise.api.shared.workers import INLINE_SIZE
from lanewise.engine.base.request import Grammar
from lanewise.sandbox.lane import SandboxError
from lanewise.text.answers.bad_words import CleanGrammar
from lanewise.text.answers.budget import Budget, BudgetedGrammar
from lanewise.text.answers.calls import Parameters, Tools
from lanewise.text.answers.families import AnswerFormat
from lanewise.text.answers.thinking import Start
from lanewise.text.grammar import CompiledGrammar, GrammarError, GrammarSource, measure
from lanewise.text.json_schema import relaxed

BLAME_S = 2.0  # to find out which of many tools cannot be used


async def grammar_of(
    ask: Ask, rendered: Rendered, state: ServerState, request: Request
) -> Grammar | None:
    """The grammar that an answer must obey, with all that belongs to it; None if there is none.

    Raises if it cannot be had.
    """
    grammar = await _budgeted(ask, rendered, state, request)
    words = ask.sampling.bad_words
    if not words:
        return grammar
    return CleanGrammar(grammar, words, state.tokenizer, state.engine.config.vocab_size)


async def _budgeted(
    ask: Ask, rendered: Rendered, state: ServerState, request: Request
) -> CompiledGrammar | BudgetedGrammar | None:
    grammar = await _grammar_of(ask, rendered, state, request)
    form, start, chat = rendered.form, rendered.start, ask.input
    if form is None or start.is_content or not isinstance(chat, Conversation):
        return grammar
    budget = chat.thinking_budget
    if budget is None or budget >= state.max_model_len:
        return grammar
    if form.thinking is None:
        add_notice(request.scope, "this model's reasoning has an effort; no budget is enforced")
        return grammar
    n_tokens = state.engine.config.vocab_size
    return BudgetedGrammar(grammar, Budget(budget, form.thinking, start), state.tokenizer, n_tokens)


async def _grammar_of(
    ask: Ask, rendered: Rendered, state: ServerState, request: Request
) -> CompiledGrammar | None:
    form, start = rendered.form, rendered.start
    if form is not None and ask.tools.callable:
        constraint = None if ask.tools.required else ask.constraint
        if constraint is not None and not form.marks_calls:
            raise BadRequestError(
                f"{constraint.param}: cannot be used together with tools that may be called: what"
                " calls of this model begin with, other texts may too; accepted: tool_choice none"
                " or required",
                param=constraint.param,
            )
        work = _compile_calls(ask.tools, constraint, form, start, state, request)
        return await while_connected(request, work)
    if ask.constraint is None:
        return None
    work = _compile_body(ask.constraint, form, start, state, request)
    grammar = await while_connected(request, work)
    _tell_left_out(ask.constraint, request)
    return grammar


def _tell_left_out(constraint: Constraint, request: Request) -> None:
    if isinstance(constraint.make, BestEffort):
        for problem in constraint.make.left_out:
            add_notice(request.scope, f"{constraint.param}: {problem}")


async def _compile_body(
    constraint: Constraint,
    form: AnswerFormat | None,
    start: Start,
    state: ServerState,
    request: Request,
) -> CompiledGrammar:
    param, make, value = constraint.param, constraint.make, constraint.value

    def source() -> GrammarSource:
        body = make(value)
        return body if form is None else form.body_grammar(body, state.tokenizer, start)

    return await compile_grammar(param, value, source, state, request)


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
        made = await state.workers.read(_size(value), source)
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


class ToolArguments:
    """The arguments of tools as far as they can be enforced: for strict ones, as they are."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self.free: dict[str, str] = {}  # tools whose arguments may be any object, and why
        self.spots: dict[str, dict[str, str]] = {}  # properties that may be anything, and why
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
        made, left_out = relaxed(function.parameters)
        for key, why in self.spots.get(function.name, {}).items():
            made["properties"] = {**made["properties"], key: {}}
            left_out.append(f"properties.{key}: not enforced: {why}")
        self.left_out[function.name] = left_out
        parameters: Parameters = made
        return parameters


async def _compile_calls(
    use: ToolUse,
    constraint: Constraint | None,
    form: AnswerFormat,
    start: Start,
    state: ServerState,
    request: Request,
) -> CompiledGrammar:
    arguments = ToolArguments(use.callable)
    value = [use.parameters, constraint and constraint.value]

    async def compile_calls() -> CompiledGrammar:
        def source() -> GrammarSource:
            return form.call_grammar(
                arguments.enforced(),
                state.tokenizer,
                start,
                required=use.required,
                parallel=use.parallel,
                body=None if constraint is None else constraint.make(constraint.value),
            )

        return await compile_grammar("tools", value, source, state, request)

    try:
        grammar = await compile_calls()
    except BadRequestError:
        if constraint is not None:  # is it to blame?
            await _compile_body(constraint, form, start, state, request)
        with suppress(TimeoutError):
            async with asyncio.timeout(BLAME_S):
                for i, tool in enumerate(use.listed):  # which of them is it?
                    if tool in use.callable:
                        where = use.param_of(i)
                        check = _ArgumentCheck(where, tool.function, form, state, request)
                        await check.find_spots(arguments)
        if not (arguments.free or arguments.spots):
            raise
        grammar = await compile_calls()
    if constraint is not None:
        _tell_left_out(constraint, request)
    for i, tool in enumerate(use.listed):
        for problem in arguments.left_out.get(tool.function.name, ()):
            add_notice(request.scope, f"{use.param_of(i)}: {problem}")
    return grammar


class _ArgumentCheck:
    """Finds out what of a function's arguments no grammar of a form can have."""

    def __init__(
        self,
        param: str,
        function: FunctionSpec,
        form: AnswerFormat,
        state: ServerState,
        request: Request,
    ) -> None:
        self._param, self._function, self._form = param, function, form
        self._state, self._request = state, request

    async def find_spots(self, arguments: ToolArguments) -> None:
        """Raise if the function is strict and cannot be used; else set free what cannot be."""
        function = self._function
        parameters = arguments.of(function)
        try:
            await self._compile(parameters)
            return
        except BadRequestError as error:
            if function.strict or parameters is None:
                raise
            whole = self._reason(error)
        found: dict[str, str] = {}
        properties = parameters.get("properties")
        for key, schema in properties.items() if isinstance(properties, dict) else ():
            alone = {**parameters, "properties": {key: schema}, "required": []}
            try:
                await self._compile(alone)
            except BadRequestError as error:
                found[key] = self._reason(error)
        if found:
            arguments.spots[function.name] = found
            try:
                await self._compile(arguments.of(function))
                return
            except BadRequestError:
                del arguments.spots[function.name]
        arguments.free[function.name] = f"not enforced at all: {whole}"

    def _reason(self, error: BadRequestError) -> str:
        return str(error).removeprefix(f"{self._param}: ")

    async def _compile(self, parameters: Parameters) -> None:
        def source() -> GrammarSource:
            return self._form.call_grammar(
                {self._function.name: parameters},
                self._state.tokenizer,
                Start.CONTENT,
                required=True,
                parallel=False,
            )

        await compile_grammar(self._param, parameters, source, self._state, self._request)
