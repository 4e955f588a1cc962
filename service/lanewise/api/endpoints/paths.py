"""Paths as clients write them: without /v1, with a slash at the end, or nearly right."""

import difflib
import re
from collections.abc import Collection, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import compile_path

from lanewise.api.endpoints.absent import absent_at, reason_of, refusal_of
from lanewise.api.endpoints.endpoint import Endpoint
from lanewise.api.errors import ApiError, BadRequestError, cut
from lanewise.api.shared.state import ServerState

LONGEST = 128  # characters of a path that are compared with others
SLIP, NEAR = 0.9, 0.75  # of difflib's ratio


class Paths:
    """The paths of some endpoints, and what is meant by others."""

    def __init__(self, endpoints: Collection[Endpoint]) -> None:
        self._methods: dict[str, set[str]] = {}
        for endpoint in endpoints:
            self._methods.setdefault(endpoint.path, set()).add(endpoint.method)
        # Paths of which a part is a name.
        self._patterns = [
            (compile_path(path)[0], methods)
            for path, methods in self._methods.items()
            if "{" in path
        ]
        firsts = {_segments(path)[0] for path in self._methods}
        below = {_segments(path)[1] for path in self._methods if path.startswith("/v1/")}
        self._without_v1 = below - firsts
        answering = (e.path.partition("/{")[0] for e in endpoints if not e.is_missing)
        self._answering = list(dict.fromkeys(answering))

    def canonical(self, path: str) -> str:
        """The path of an endpoint that clients may write without /v1, or with a slash at its end.

        Any other path is as it was but for that slash.
        """
        if len(path) > 1:
            path = path.removesuffix("/")
        return f"/v1{path}" if path[1:].partition("/")[0] in self._without_v1 else path

    def nearest(self, path: str) -> str | None:
        """The endpoint that may have been meant, if one is like it."""
        cleaned = re.sub("/+", "/", path[-LONGEST:].lower()).rstrip("/")
        if (exact := self.canonical(cleaned)) in self._answering:
            return exact
        if slips := self._close(cleaned, SLIP):
            return slips[0]
        # Below something else, as behind a gateway: /openai/deployments/NAME/chat/completions.
        inside = [p for p in self._answering if cleaned.endswith(p.removeprefix("/v1"))]
        if inside:
            return max(inside, key=len)
        return next(iter(self._close(cleaned, NEAR)), None)

    def _close(self, path: str, ratio: float) -> list[str]:
        return difflib.get_close_matches(path, self._answering, n=1, cutoff=ratio)

    def error(self, request: Request, error: HTTPException, state: ServerState) -> ApiError:
        """What is said where no endpoint answers: neither this path nor this method."""
        path, status = request.url.path, error.status_code
        absent = absent_at(path) if status in (404, 405) else None
        if absent is not None and not absent.has(state.pooling):
            return refusal_of(path, reason_of(absent, state), state)
        if status == 404:
            return self._nothing_at(path)
        if status == 405:
            methods = self._methods.get(request.scope["route"].path, {"GET"})
            return _not_allowed(request.method, path, methods)
        return _answer(status, str(error.detail), None, error.headers)

    def refusal(self, method: str, path: str) -> ApiError | None:
        """What is said where no endpoint answers, by a server that serves no model itself."""
        methods = self._methods.get(path) or {
            one for pattern, ones in self._patterns if pattern.match(path) for one in ones
        }
        if not methods:
            return self._nothing_at(path)
        asked = "GET" if method == "HEAD" else method
        return None if {asked, method} & methods else _not_allowed(method, path, methods)

    def _nothing_at(self, path: str) -> ApiError:
        near = self.nearest(path)
        hint = f"did you mean {near}?" if near else "/docs says what there is"
        message = f"there is nothing at {cut(path, LONGEST)}; {hint}"
        return _answer(404, message, "not_found")


def _not_allowed(method: str, path: str, methods: Collection[str]) -> ApiError:
    accepted = ", ".join(sorted(methods))
    message = f"{method} is not allowed for {cut(path, LONGEST)}; accepted: {accepted}"
    return _answer(405, message, "method_not_allowed", {"allow": accepted})


def _answer(
    status: int, message: str, code: str | None, headers: Mapping[str, str] | None = None
) -> ApiError:
    answer = BadRequestError(message, code=code, headers=headers)
    answer.status = status
    return answer


def _segments(path: str) -> list[str]:
    return path[1:].split("/")
