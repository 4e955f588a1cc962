"""The one path from a request to its answer, whatever dialect it speaks.

parse ─► measure ─► resolve the model ─► render ─► compile ─► queue ─► deliver

A dialect does the first and the last in its own words (``dialect.py``); what it asks for is an
``Ask`` (``ask.py``), what it is given are the ``Piece``s of an answer (``events.py``).
"""

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.errors import ApiError
from lanewise.api.generation.answering import Answering
from lanewise.api.generation.ask import Ask, Conversation, Prompts
from lanewise.api.generation.body import find_adapter, hold_of, parse_json, read_bytes, validate
from lanewise.api.generation.delivery import Order, deliver
from lanewise.api.generation.dialect import About, Dialect, Prompt
from lanewise.api.generation.drawing import lengths, make_requests, sampling_params
from lanewise.api.generation.events import Times, Usage
from lanewise.api.generation.expecting import expected_tokens
from lanewise.api.generation.logprobs import TokenNames
from lanewise.api.generation.measuring import check_priority, tell_context, tell_lengths
from lanewise.api.generation.rendering import Rendered, render
from lanewise.api.generation.structured import grammar_of
from lanewise.api.http.error_forms import ErrorForm
from lanewise.api.observing.notices import add_notice, add_unknown
from lanewise.api.shared.state import ServerState
from lanewise.text.pieces import Bounds

Choose = Callable[[Any], Dialect[Any]]  # by a body's JSON


async def answer(request: Request, state: ServerState, dialect: Dialect[Any]) -> Response:
    """Answer a request in the dialect that it is asked in."""
    return await answer_in(request, state, lambda _: dialect, dialect.errors)


async def answer_in(
    request: Request, state: ServerState, choose: Choose, errors: ErrorForm
) -> Response:
    """Answer a request in the dialect that its body's JSON says; all have the same errors."""
    times = Times()
    try:
        ask, size, dialect = await _read(request, state, choose)
        for text in ask.notices:
            add_notice(request.scope, text)
        return await _answer(ask, size, times, request, state, dialect)
    except ApiError as error:
        return errors.response(error)


async def count(
    request: Request, state: ServerState, dialect: Dialect[Any], **more: str
) -> Response:
    """How many tokens the prompt of a request has; the answer says ``more`` before that."""
    try:
        ask, size, _ = await _read(request, state, lambda _: dialect)
        for text in ask.notices:
            add_notice(request.scope, text)
        find_adapter(ask.model, state)
        rendered = await render(ask, size, state, request, Bounds(room=hold_of(request)))
    except ApiError as error:
        return dialect.errors.response(error)
    n_tokens = sum(len(prompt.ids) for prompt in rendered.prompts)
    return JSONResponse({**more, "input_tokens": n_tokens})


async def _read(
    request: Request, state: ServerState, choose: Choose
) -> tuple[Ask, int, Dialect[Any]]:
    """What is asked for, and how many bytes it came in: what all work on it is measured by."""
    body = await read_bytes(request, state.max_body_bytes)

    def read() -> tuple[Dialect[Any], Callable[[], Ask], int]:
        data = parse_json(body, hold_of(request))
        dialect = choose(data)
        parsed = validate(data, dialect.body)
        add_unknown(request.scope, dialect.body.unknown(data))
        n_more = dialect.look_up(parsed)

        def ask() -> Ask:
            made = dialect.ask(parsed)
            state.request_budgets.check(made)
            return made

        # What it refers to may take longer to read than the request itself did.
        return dialect, ask if n_more else partial(_same, ask()), n_more

    dialect, ask, n_more = await state.workers.read(len(body), read)
    hold_of(request).body_is_read()
    return await state.workers.read(n_more, ask), len(body) + n_more, dialect


def _same(ask: Ask) -> Ask:
    return ask


async def _answer(
    ask: Ask,
    size: int,
    times: Times,
    request: Request,
    state: ServerState,
    dialect: Dialect[Any],
) -> Response:
    check_priority(ask, request.scope, state)
    tell_context(ask, request.scope, state)
    adapter = find_adapter(ask.model, state)
    if isinstance(ask.input, Prompts) and not ask.input.items:
        about = _about(ask, (), Usage(times=times), state)
        return Response("".join(dialect.wire(about).whole(())), media_type="application/json")
    rendered = await render(ask, size, state, request)
    prompts, read = rendered.prompts, state.workers.read
    grammar = await grammar_of(ask, rendered, state, request)
    most = await read(size, lambda: lengths(ask, prompts, state))
    tell_lengths(ask, most, request.scope)
    params = await read(size, lambda: sampling_params(ask, most, state))
    client = request.scope["client_number"]
    tenant = state.tenant_of(client)
    expected: Sequence[int] = ()
    if ask.expected:
        expected = await read(size, partial(expected_tokens, ask.expected, state, hold_of(request)))
    requests = make_requests(ask, prompts, params, client, tenant, adapter, grammar, expected)
    answering = await read(size, partial(_answering, ask, rendered, state, expected))
    answering.usage.times = times
    about = _about(ask, prompts, answering.usage, state)
    order = Order(ask, requests, answering, dialect, dialect.wire(about), about.model, size)
    return await deliver(order, request, state)


def _answering(
    ask: Ask, rendered: Rendered, state: ServerState, expected: Sequence[int]
) -> Answering:
    # The first space of an answer may be the tokenizer's or the model's. It is the model's where
    # the answer goes on with a text, and where it has a form, which has every space in it.
    continues = ask.constraint is not None and not ask.tools.callable
    chat = ask.input if rendered.form is not None else None
    if not isinstance(chat, Conversation) or chat.continue_final_message:
        continues = True
    return Answering(ask, rendered, state.tokenizer, expected, continues=continues)


def _about(ask: Ask, prompts: Sequence[Prompt], usage: Usage, state: ServerState) -> About:
    return About(
        ask=ask,
        prompts=prompts,
        id=secrets.token_hex(12),
        created=int(time.time()),
        model=ask.model or state.model_name,
        context=state.max_model_len,
        fingerprint=state.fingerprint,
        usage=usage,
        names=TokenNames(state.tokenizer),
    )
