"""What a request says about the form of its answer, compiled into a grammar before it is queued."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lanewise.api.conversations import FunctionSpec, Tool
from lanewise.api.errors import BadRequestError, UnavailableError
from lanewise.api.generation.ask import Ask, BestEffort, Constraint, Conversation
from lanewise.api.generation.call import Call
from lanewise.api.generation.leaving import while_connected
from lanewise.api.generation.rendering import Rendered
from lanewise.api.shared.budgets import RETRY_AFTER_S
from lanewise.api.shared.workers import INLINE_SIZE
from lanewise.engine.base.request import Grammar
from lanewise.sandbox.lane import SandboxError
from lanewise.text.answers.bad_words import CleanGrammar
from lanewise.text.answers.budget import Budget, BudgetedGrammar, ThinkingControl
from lanewise.text.answers.calls import Parameters, Tools
from lanewise.text.answers.families import AnswerFormat
from lanewise.text.answers.thinking import Start
from lanewise.text.grammar import CompiledGrammar, GrammarError, GrammarSource, measure
from lanewise.text.json_schema import relaxed

BLAME_S = 2.0  # to find out which of many tools cannot be used


async def grammar_of(call: Call[Ask], rendered: Rendered) -> Grammar | None:
    """The grammar that an answer must obey, with all that belongs to it; None if there is none.

    Raises if it cannot be had.
    """
    state, words = call.state, call.ask.sampling.bad_words
    grammar = await _budgeted(call, rendered)
    if not words:
        return grammar
    return CleanGrammar(grammar, words, state.tokenizer, state.engine.config.vocab_size)


async def _budgeted(
    call: Call[Ask], rendered: Rendered
) -> CompiledGrammar | BudgetedGrammar | None:
    grammar, state = await _grammar_of(call, rendered), call.state
    form, start, chat = rendered.form, rendered.start, call.ask.input
    if form is None or start.is_content or not isinstance(chat, Conversation):
        return grammar
    most = state.max_model_len
    budget = most if chat.thinking_budget is None else chat.thinking_budget
    if budget >= most and not chat.thinking_control:
        return grammar
    if form.thinking is None:
        call.caller.tell("this model's reasoning has an effort; no budget is enforced")
        return grammar
    control = ThinkingControl()
    if chat.thinking_control:
        state.thinking_controls[call.caller.number, call.id] = control
    n_tokens = state.engine.config.vocab_size
    kept = Budget(budget, form.thinking, start, control)
    return BudgetedGrammar(grammar, kept, state.tokenizer, n_tokens)


async def _grammar_of(call: Call[Ask], rendered: Rendered) -> CompiledGrammar | None:
    ask, form, start = call.ask, rendered.form, rendered.start
    if form is not None and ask.tools.callable:
        constraint = None if ask.tools.required else ask.constraint
        if constraint is not None and not form.marks_calls:
            raise BadRequestError(
                f"{constraint.param}: cannot be used together with tools that may be called: what"
                " calls of this model begin with, other texts may too; accepted: tool_choice none"
                " or required",
                param=constraint.param,
            )
        return await while_connected(call.receive, _compile_calls(call, constraint, form, start))
    if ask.constraint is None:
        return None
    work = _compile_body(call, ask.constraint, form, start)
    grammar = await while_connected(call.receive, work)
    _tell_left_out(call, ask.constraint)
    return grammar


def _tell_left_out(call: Call[Ask], constraint: Constraint) -> None:
    if isinstance(constraint.make, BestEffort):
        for problem in constraint.make.left_out:
            call.caller.tell(f"{constraint.param}: {problem}")


async def _compile_body(
    call: Call[Ask], constraint: Constraint, form: AnswerFormat | None, start: Start
) -> CompiledGrammar:
    param, make, value = constraint.param, constraint.make, constraint.value

    def source() -> GrammarSource:
        body = make(value)
        return body if form is None else form.body_grammar(body, call.state.tokenizer, start)

    return await compile_grammar(call, param, value, source)


async def compile_grammar(
    call: Call[Ask], param: str, value: Any, make: Callable[[], GrammarSource]
) -> CompiledGrammar:
    """Compile the grammar that ``make`` makes of ``value``, or say what is wrong with ``param``."""
    state = call.state
    counts, most = state.engine.metrics.grammars, state.budgets.max_grammar_bytes

    def source() -> GrammarSource:
        measure(value, most)
        made = make()
        made.check_size(most)
        return made

    try:
        made = await state.workers.read(_size(value), source)
        grammar, result = await state.grammars.get(made, call.caller.client)
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
    call: Call[Ask], constraint: Constraint | None, form: AnswerFormat, start: Start
) -> CompiledGrammar:
    use = call.ask.tools
    arguments = ToolArguments(use.callable)
    value = [use.parameters, constraint and constraint.value]

    async def compile_calls() -> CompiledGrammar:
        def source() -> GrammarSource:
            return form.call_grammar(
                arguments.enforced(),
                call.state.tokenizer,
                start,
                required=use.required,
                parallel=use.parallel,
                body=None if constraint is None else constraint.make(constraint.value),
            )

        return await compile_grammar(call, "tools", value, source)

    try:
        grammar = await compile_calls()
    except BadRequestError:
        if constraint is not None:  # is it to blame?
            await _compile_body(call, constraint, form, start)
        with suppress(TimeoutError):
            async with asyncio.timeout(BLAME_S):
                for i, tool in enumerate(use.listed):  # which of them is it?
                    if tool in use.callable:
                        check = _ArgumentCheck(call, use.param_of(i), tool.function, form)
                        await check.find_spots(arguments)
        if not (arguments.free or arguments.spots):
            raise
        grammar = await compile_calls()
    if constraint is not None:
        _tell_left_out(call, constraint)
    for i, tool in enumerate(use.listed):
        for problem in arguments.left_out.get(tool.function.name, ()):
            call.caller.tell(f"{use.param_of(i)}: {problem}")
    return grammar


class _ArgumentCheck:
    """Finds out what of a function's arguments no grammar of a form can have."""

    def __init__(
        self, call: Call[Ask], param: str, function: FunctionSpec, form: AnswerFormat
    ) -> None:
        self._call, self._param, self._function, self._form = call, param, function, form

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
                self._call.state.tokenizer,
                Start.CONTENT,
                required=True,
                parallel=False,
            )

        await compile_grammar(self._call, self._param, parameters, source)
