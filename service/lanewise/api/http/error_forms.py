"""Which form errors have at a path: the same from middleware, router and endpoint."""

from collections.abc import Callable, Mapping

from starlette.responses import Response

from lanewise.api.errors import ApiError

Refusal = Callable[[ApiError], Response]


class ErrorForms:
    """OpenAI's error object, but for paths of other dialects and whatever is below them."""

    def __init__(self, refusals: Mapping[str, Refusal]) -> None:
        self._refusals = refusals

    def response(self, error: ApiError, path: str) -> Response:
        """An error as the HTTP answer to a request of this path."""
        while path:
            if refusal := self._refusals.get(path):
                return refusal(error)
            path = path.rpartition("/")[0]
        return error.response()
