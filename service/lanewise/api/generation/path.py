"""The one path from a request to its answer, whatever dialect it speaks.

parse ─► measure ─► resolve the model ─► render ─► compile ─► queue ─► respond

A dialect does the first and the last in its own words (``dialect.py``); what it asks for is an
``Ask`` (``ask.py``), what it is given are the ``Piece``s of an answer (``events.py``).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.errors import ApiError
from lanewise.api.generation.answering import Answering
from lanewise.api.generation.ask import Ask, Conversation, Prompts
from lanewise.api.generation.body import find_adapter, parse_json, read_bytes, validate
from lanewise.api.generation.call import Call
from lanewise.api.generation.delivery import Order, respond
from lanewise.api.generation.dialect import About, Dialect, Prompt
from lanewise.api.generation.drawing import lengths, make_requests, sampling_params
from lanewise.api.generation.events import Times, Usage
from lanewise.api.generation.expecting import expected_tokens
from lanewise.api.generation.logprobs import TokenNames
from lanewise.api.generation.measuring import check_priority, tell_context, tell_lengths
from lanewise.api.generation.receipts import Receipts, receipts_for
from lanewise.api.generation.rendering import Rendered, render
from lanewise.api.generation.structured import grammar_of
from lanewise.api.http.error_forms import ErrorForm
from lanewise.api.observing.caller import caller_of
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
        call, dialect = await _read(request, state, choose)
        return await _answer(call, times, dialect)
    except ApiError as error:
        return errors.response(error)


async def count(
    request: Request, state: ServerState, dialect: Dialect[Any], **more: str
) -> Response:
    """How many tokens the prompt of a request has; the answer says ``more`` before that."""
    try:
        call, _ = await _read(request, state, lambda _: dialect)
        find_adapter(call.ask.model, state)
        rendered = await render(call, Bounds(room=call.hold), wants_pixels=False)
    except ApiError as error:
        return dialect.errors.response(error)
    n_tokens = sum(len(prompt.ids) for prompt in rendered.prompts)
    return JSONResponse({**more, "input_tokens": n_tokens})


async def _read(
    request: Request, state: ServerState, choose: Choose
) -> tuple[Call[Ask], Dialect[Any]]:
    """What is asked for, once the client is told of what is not read of it."""
    caller = caller_of(request.scope)
    body = await read_bytes(request, state.max_body_bytes)

    def read() -> tuple[Dialect[Any], Callable[[], Ask], int]:
        data = parse_json(body, caller.hold)
        dialect = choose(data)
        parsed = validate(data, dialect.body)
        caller.tell_unknown(dialect.body.unknown(data))
        n_more = dialect.look_up(parsed)

        def ask() -> Ask:
            made = dialect.ask(parsed)
            state.request_budgets.check(made)
            return made

        # What it refers to may take longer to read than the request itself did.
        return dialect, ask if n_more else partial(_same, ask()), n_more

    dialect, ask, n_more = await state.workers.read(len(body), read)
    caller.hold.body_is_read()
    made = await state.workers.read(n_more, ask)
    for text in made.notices:
        caller.tell(text)
    return Call(made, len(body) + n_more, state, caller, request.receive), dialect


def _same(ask: Ask) -> Ask:
    return ask


async def _answer(call: Call[Ask], times: Times, dialect: Dialect[Any]) -> Response:
    ask, state = call.ask, call.state
    check_priority(call, ask.priority)
    tell_context(call)
    adapter = find_adapter(ask.model, state)
    if isinstance(ask.input, Prompts) and not ask.input.items:
        about = _about(call, (), Usage(times=times))
        return Response("".join(dialect.wire(about).whole(())), media_type="application/json")
    rendered = await render(call)
    prompts, size, read = rendered.prompts, call.size, state.workers.read
    grammar = await grammar_of(call, rendered)
    most = await read(size, lambda: lengths(call, prompts))
    tell_lengths(call, most)
    params = await read(size, lambda: sampling_params(call, most))
    expected = await read(size, partial(expected_tokens, call)) if ask.expected else []
    requests = make_requests(call, prompts, params, adapter, grammar, expected)
    receipts = None
    if ask.shown.receipt:
        receipts = await read(size, partial(receipts_for, call, requests, grammar))
    answering = await read(size, partial(_answering, call, rendered, expected, receipts))
    answering.usage.times = times
    answering.usage.image_tokens = sum(
        span.n_tokens for prompt in prompts for span in prompt.pictures
    )
    about = _about(call, prompts, answering.usage, receipts)
    return await respond(
        Order(call, requests, answering, dialect, dialect.wire(about), about.model)
    )


def _answering(
    call: Call[Ask], rendered: Rendered, expected: Sequence[int], receipts: Receipts | None
) -> Answering:
    ask = call.ask
    # The first space of an answer may be the tokenizer's or the model's. It is the model's where
    # the answer goes on with a text, and where it has a form, which has every space in it.
    continues = ask.constraint is not None and not ask.tools.callable
    chat = ask.input if rendered.form is not None else None
    if not isinstance(chat, Conversation) or chat.continue_final_message:
        continues = True
    return Answering(
        ask, rendered, call.state.tokenizer, expected, continues=continues, receipts=receipts
    )


def _about(
    call: Call[Ask], prompts: Sequence[Prompt], usage: Usage, receipts: Receipts | None = None
) -> About:
    ask, state = call.ask, call.state
    return About(
        ask=ask,
        prompts=prompts,
        id=call.id,
        created=int(time.time()),
        model=ask.model or state.model_name,
        context=state.max_model_len,
        fingerprint=state.fingerprint,
        usage=usage,
        names=TokenNames(state.tokenizer),
        receipts=receipts,
    )
