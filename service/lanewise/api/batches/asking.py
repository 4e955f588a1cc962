"""Asks this server's own endpoints what a request of a batch asks, without a connection.

It is the path of any other request, from its body on: the same endpoint reads the body, answers in
its dialect and says its errors. Only the sender differs: a caller in the background.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import Message

from lanewise.api.endpoints.endpoint import Endpoint
from lanewise.api.errors import ApiError, BadRequestError, InternalError
from lanewise.api.generation.body import parse_json
from lanewise.api.http.error_forms import ErrorForms
from lanewise.api.http.limits import Hold, RequestMemory
from lanewise.api.observing.caller import Caller
from lanewise.api.shared.state import ServerState
from lanewise.batches.forms import Reply
from lanewise.text.tokenizing_error import TokenizingError

logger = logging.getLogger(__name__)

# What the server could not do just now, and may do later: never an answer to a batch's request.
LATER = (429, 503, 529)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
TRIES_AFTER_FAILURE = 3  # of requests with which the model failed


class Asker:
    """Asks in the name of one key."""

    def __init__(
        self,
        state: ServerState,
        endpoints: Mapping[str, Endpoint],
        errors: ErrorForms,
        memory: RequestMemory,
        *,
        any_model: bool = False,
    ) -> None:
        """``endpoints`` by the paths that requests name.

        With ``any_model`` the served one answers requests for models that are not here.
        """
        self._any_model = any_model
        self._state, self._endpoints, self._errors = state, endpoints, errors
        self._memory = memory

    async def ask(self, number: int, tenant: str, path: str, line: bytes) -> Reply:
        """The answer to one request; it is asked again for as long as the server is too busy."""
        pause_s, n_failures = FIRST_PAUSE_S, 0
        while True:
            reply = await self._ask_once(number, tenant, path, line)
            if reply.status == InternalError.status:
                n_failures += 1
            is_final = reply.status not in (*LATER, InternalError.status)
            if is_final or n_failures >= TRIES_AFTER_FAILURE:
                return reply
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def parse(self, line: bytes) -> Any:
        """What a line says, for which there is room; ValueError if it is not JSON."""
        hold = Hold(self._memory)
        try:
            return parse_json(line, hold)
        except BadRequestError as error:
            raise ValueError(error.message) from None
        finally:
            hold.release()

    async def _ask_once(self, number: int, tenant: str, path: str, line: bytes) -> Reply:
        hold = Hold(self._memory)
        caller = Caller(number, False, tenant, hold, is_background=True)
        request_id = secrets.token_hex(16)
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "caller": caller,
            "hold": hold,
            "request_id": request_id.encode(),
        }
        content: list[bytes] = []

        async def receive() -> Message:
            if not content:
                await asyncio.Event().wait()  # it never leaves; it is cancelled
            return {"type": "http.request", "body": content.pop(), "more_body": False}

        status, said = 0, b""

        async def send(message: Message) -> None:
            nonlocal status, said
            status = message.get("status", status)
            said += message.get("body", b"")

        spending = self._state.spending
        try:
            if spending is not None:  # a key that has used what it may waits
                spending.enter(caller)
            hold.keep(len(line))
            content.append(
                await self._state.workers.read(len(line), lambda: self._body(line, hold))
            )
            try:
                response = await self._endpoints[path].reply(Request(scope, receive), self._state)
            except TokenizingError as error:
                raise BadRequestError(str(error)) from None
            await response(scope, receive, send)
        except ApiError as error:
            await self._errors.response(error, path)(scope, receive, send)
        except Exception:
            logger.exception("a batch's request to %s failed", path)
            failed = InternalError("the server made a mistake; its log has the details")
            await self._errors.response(failed, path)(scope, receive, send)
        finally:
            if spending is not None:
                model = None if caller.record is None else caller.record.model
                spending.leave(caller, self._state.canonical_name(model))
            hold.release()
        return Reply(status, said, request_id)

    def _body(self, line: bytes, hold: Hold) -> bytes:
        """The body of the request of a line; it is not streamed, for its answer is a line."""
        body = parse_json(line, hold)["body"]
        without = {"stream", "stream_options"}
        if self._any_model and body.get("model") not in self._state.model_names:
            without.add("model")
        return json.dumps({name: one for name, one in body.items() if name not in without}).encode()
