"""Which form errors have at a path: the same from middleware, router and endpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from starlette.responses import JSONResponse, Response

from lanewise.api.errors import ApiError
from lanewise.api.openapi.openai_answers import ERROR
from lanewise.api.openapi.shapes import Schema


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How a dialect says errors, and what /openapi.json says of them."""

    name: str
    schema: Schema
    body: Callable[[ApiError], dict[str, Any]] = ApiError.body
    status: Callable[[ApiError], int] = attrgetter("status")  # before a stream begins
    also: tuple[int, ...] = ()  # statuses of its own

    def response(self, error: ApiError) -> Response:
        """An error as an HTTP answer."""
        return JSONResponse(self.body(error), self.status(error), error.headers)


OPENAI = ErrorForm("Error", ERROR)


class ErrorForms:
    """OpenAI's error object, but for paths of other dialects and whatever is below them."""

    def __init__(self, forms: Mapping[str, ErrorForm]) -> None:
        self._forms = forms

    def at(self, path: str) -> ErrorForm:
        """The form of errors at a path."""
        while path:
            if form := self._forms.get(path):
                return form
            path = path.rpartition("/")[0]
        return OPENAI

    def response(self, error: ApiError, path: str) -> Response:
        """An error as the HTTP answer to a request of this path."""
        return self.at(path).response(error)
