"""``/v1/responses`` and what is kept of it."""

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.conversations import Message
from lanewise.api.dialects.responses.asking import ask_of, own_items
from lanewise.api.dialects.responses.compacting import REQUEST, CompactRequest, CompactWire
from lanewise.api.dialects.responses.items import JsonItem, with_ids
from lanewise.api.dialects.responses.kept import SHOWN, Kept, items_before, stored
from lanewise.api.dialects.responses.schema import ResponsesRequest
from lanewise.api.dialects.responses.wire import Asked, ResponsesWire
from lanewise.api.errors import BadRequestError, NotFoundError
from lanewise.api.generation import path
from lanewise.api.generation.ask import Ask, Conversation, Delivery
from lanewise.api.generation.dialect import About, Dialect
from lanewise.api.generation.writing import dumps_long
from lanewise.api.observing.caller import caller_of
from lanewise.api.shared.pages import Page, listed
from lanewise.api.shared.response_store import Stored
from lanewise.api.shared.state import ServerState

MAX_PAGE = 100
PAGE = 20


class Exchange:
    """One request and its answer, with what is kept for the client."""

    def __init__(self, request: Request, state: ServerState) -> None:
        caller = caller_of(request.scope)
        self._state, self._key = state, caller.number
        # Answers of batches would drive out what clients go on from.
        self._keeps = state.responses.keeps_any and not caller.is_background
        self._kept = Kept(state, self._key, caller.hold)
        self._body: ResponsesRequest | None = None
        self._before: list[JsonItem] = []  # of the responses before
        self._own: list[JsonItem] = []

    @property
    def dialect(self) -> Dialect[ResponsesRequest]:
        """What the path needs to know."""
        return Dialect(
            name=create_response.__name__,
            summary="Answer a conversation of items",
            body=ResponsesRequest,
            ask=self.ask,
            wire=self.wire,
            in_order=True,
            look_up=self._kept.look_up,
            repeats=True,
        )

    @property
    def compacting(self) -> Dialect[CompactRequest]:
        """The same of a conversation that is to become shorter."""
        return Dialect(
            name=compact_response.__name__,
            summary="Make a conversation shorter",
            body=CompactRequest,
            ask=self.ask_for_summary,
            wire=lambda about: CompactWire(about, self._items),
            look_up=self._kept.look_up,
            repeats=True,
        )

    @property
    def _items(self) -> list[JsonItem]:
        return [*self._before, *self._own]

    def ask(self, body: ResponsesRequest) -> Ask:
        """What a request asks for, after all that it goes on from."""
        self._body = body
        self._before = self._kept.before()
        self._kept.read()
        self._own = own_items(body, self._kept.item)
        return ask_of(body, self._items)

    def ask_for_summary(self, body: CompactRequest) -> Ask:
        """A summary of all that; its prompt begins as the conversation does."""
        made = self.ask(body)
        assert isinstance(made.input, Conversation)
        wanted = Message.model_validate({"role": "user", "content": REQUEST})
        messages = [*made.input.messages, wanted]
        return replace(
            made,
            input=replace(made.input, messages=messages, drops_oldest=True),
            tools=replace(made.tools, callable=(), required=False),
            constraint=None,
            delivery=Delivery(),
        )

    def wire(self, about: About) -> ResponsesWire:
        """What writes the answer."""
        body = self._body
        assert body is not None

        def keep(response: dict[str, Any]) -> None:
            if asked.is_stored:
                own = with_ids(self._own, about.id)
                answer = stored(response, [*self._before, *own])
                self._state.responses.put(self._key, response["id"], answer)

        asked = Asked(
            body=body,
            defaults=self._state.sampling_defaults,
            n_items=len(self._own),
            is_stored=body.store and self._keeps,
            keep=keep,
        )
        return ResponsesWire(about, asked)


async def create_response(request: Request, state: ServerState) -> Response:
    """Answer a conversation of items."""
    exchange = Exchange(request, state)
    return await path.answer(request, state, exchange.dialect)


async def compact_response(request: Request, state: ServerState) -> Response:
    """A conversation as its user's words and a summary."""
    exchange = Exchange(request, state)
    return await path.answer(request, state, exchange.compacting)


async def count_input_tokens(request: Request, state: ServerState) -> Response:
    """How many tokens the conversation has that a request would be answered to."""
    exchange = Exchange(request, state)
    named = {"object": "response.input_tokens"}
    return await path.count(request, state, exchange.dialect, **named)


def _stored(request: Request, state: ServerState) -> Stored:
    name = request.path_params["response_id"]
    found = state.responses.get(caller_of(request.scope).number, name)
    if found is None:
        raise NotFoundError(f"Response with id {name[:SHOWN]!r} not found.", param="response_id")
    return found


async def get_response(request: Request, state: ServerState) -> Response:
    """A response that is kept."""
    found = _stored(request, state)
    caller_of(request.scope).hold.keep(len(found.response))  # the connection has a copy
    if request.query_params.get("stream") in ("true", "1"):
        raise BadRequestError("stream: a response that is kept is given whole", param="stream")
    return Response(found.response, media_type="application/json")


async def delete_response(request: Request, state: ServerState) -> Response:
    """Keep a response no longer."""
    _stored(request, state)
    name = request.path_params["response_id"]
    state.responses.delete(caller_of(request.scope).number, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def cancel_response(request: Request, state: ServerState) -> Response:
    """Say that there is nothing to cancel: only background responses can be."""
    _stored(request, state)
    raise BadRequestError(
        "Cannot cancel a synchronous response: it is complete. One that is being made ends when its"
        " client closes the connection.",
        param="response_id",
    )


async def list_input_items(request: Request, state: ServerState) -> Response:
    """The conversation before a response that is kept, the latest item first."""
    found = _stored(request, state)
    with caller_of(request.scope).hold.passing(found.parsed_bytes):
        page = await state.workers.read(found.size, lambda: _page_of(found, request))
        return await state.workers.answer(found.size, lambda: dumps_long(page))


def _page_of(found: Stored, request: Request) -> dict[str, Any]:
    """Some of the items of a conversation, as a request asks for them."""
    items = items_before(found)
    asked, after = Page.of(request, PAGE, MAX_PAGE), request.query_params.get("after")
    if asked.newest_first:
        items.reverse()
    if after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise BadRequestError(f"after: there is no item {after[:SHOWN]!r}", param="after")
        items = items[place + 1 :]
    return listed(items, asked.limit)
