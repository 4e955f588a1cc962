"""What stands before the replicas: passes requests to one, and to another one if that dies."""

import asyncio
import contextlib
import logging
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lanewise.api.endpoints.table import error_forms
from lanewise.api.errors import ApiError, BodyTooLargeError, UnavailableError
from lanewise.api.observing.merging import merged
from lanewise.cluster.messages import Asked, Head, ServerGoneError
from lanewise.cluster.prompt import prompt_text

logger = logging.getLogger("ray.serve")

RETRY_AFTER_S = 5
METRICS_S = 5.0
PAUSE_S = 0.2  # in which the router is told that a replica has died
SMALL_BYTES = 64 << 10  # of a body that is read sooner than another thread takes it over
# Ray's proxy gives an answer its own.
OF_THE_PROXY = frozenset((b"date", b"server", b"x-request-id"))


class Ingress:
    """An HTTP application whose answers are those of the replicas."""

    def __init__(self, replicas: Any, wait_s: float, attempts: int, max_body_bytes: int) -> None:
        """``wait_s`` is for a replica to take a request, of which ``attempts`` replicas may die."""
        self._replicas = replicas
        self._answer = replicas.options(stream=True).answer
        self._wait_s, self._attempts = wait_s, attempts
        self._max_body_bytes = max_body_bytes
        self._forms = error_forms()

    async def __call__(self, request: Request) -> Response:
        """The answer of a replica, or an error in the form that the path's clients expect."""
        try:
            if request.url.path == "/metrics" and request.method == "GET":
                return await self._metrics()
            return await self._answered(await self._read(request))
        except ApiError as error:
            return self._forms.response(error, request.url.path)

    async def _read(self, request: Request) -> Asked:
        body = bytearray()
        async for some in request.stream():
            body += some
            if len(body) > self._max_body_bytes:
                raise BodyTooLargeError(f"the body has more than {self._max_body_bytes} bytes")
        whole = bytes(body)
        path, query = request.scope["raw_path"], request.scope["query_string"]
        return Asked(
            request.method,
            (path + b"?" + query if query else path).decode("latin-1"),
            list(request.scope["headers"]),
            whole,
            await _prompt_text(whole),
        )

    async def _metrics(self) -> Response:
        """Of all replicas that tell theirs in time: one that is dying hides no other."""
        try:
            told = await self._replicas.broadcast("metrics").results_async(
                timeout_s=METRICS_S, return_exceptions=True
            )
        except (DeploymentUnavailableError, TimeoutError) as error:
            raise _unavailable("no server has told its metrics") from error
        texts = dict(one for one in told if not isinstance(one, BaseException))
        return Response(merged(texts), media_type="text/plain; version=0.0.4")

    async def _answered(self, asked: Asked) -> "Passed":
        for _ in range(self._attempts):
            parts = self._answer.remote(asked)
            try:
                await asyncio.wait_for(anext(parts), self._wait_s)
                # Headers go with the first bytes: until then another can be asked.
                return Passed(await anext(parts), await anext(parts, b""), parts)
            except (RayActorError, ServerGoneError) as error:
                logger.warning("%s %s: %s; asked again", asked.method, asked.target, error)
                await asyncio.sleep(PAUSE_S)
            except (BackPressureError, DeploymentUnavailableError, TimeoutError) as error:
                parts.cancel()
                raise _unavailable(f"no server took it within {self._wait_s:g} s") from error
            except asyncio.CancelledError:
                parts.cancel()
                raise
        raise _unavailable(f"{self._attempts} servers ended before they answered it")


class Passed(Response):
    """A replica's answer, whose bytes go on as they come."""

    def __init__(self, head: Head, first: bytes, parts: Any) -> None:
        self.status_code, self.background = head.status, None
        self.raw_headers = [one for one in head.headers if one[0].lower() not in OF_THE_PROXY]
        self._first, self._parts = first, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer that breaks off is not ended, so that its client does not think it whole."""
        start = {"type": "http.response.start", "status": self.status_code}
        body = {"type": "http.response.body", "body": b"", "more_body": True}
        try:
            await send(start | {"headers": self.raw_headers})
            await send(body | {"body": self._first})
            async for some in self._parts:
                await send(body | {"body": some})
            await send(body | {"more_body": False})
        finally:
            with contextlib.suppress(Exception):
                self._parts.cancel()  # nothing if it has ended


async def _prompt_text(body: bytes) -> str:
    if len(body) <= SMALL_BYTES:
        return prompt_text(body)
    return await asyncio.to_thread(prompt_text, body)


def _unavailable(message: str) -> UnavailableError:
    return UnavailableError(message, headers={"retry-after": str(RETRY_AFTER_S)})
