"""What an endpoint's answer is, and what statuses of errors mean."""

from typing import NamedTuple

from lanewise.api.openapi.shapes import Schema

JSON, SSE, NDJSON = "application/json", "text/event-stream", "application/x-ndjson"
DONE = "[DONE]"
PLAIN, METRICS = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"


class Answer(NamedTuple):
    """A schema of the whole answer, and of an event or line where it can be streamed."""

    whole: Schema
    streamed: Schema | None = None
    stream_type: str = SSE
    stream_end: str | None = None  # the last event's data
    whole_type: str = JSON


OF_BODIES = (400, 404, 408, 413, 415, 429, 500, 503, 504)
ERRORS = {
    400: "A field has a value that cannot be used, or that this model or server cannot honour",
    401: "The API key is missing or wrong",
    403: "Not with this key, or no more of it, or on no server that was started like this one",
    404: "There is no such model, response, file, batch or path",
    408: "The body did not arrive in time",
    409: "It is in use",
    413: "The body is too large",
    415: "The body is compressed, or not JSON",
    429: "The queue is full, or the key has used what it may; see Retry-After",
    500: "The model failed",
    501: "This server does not do that; the message says why",
    503: "The server is shutting down or busy, or the request has waited too long; see Retry-After",
    504: "The request took longer than requests may",
    507: "There is no room on the server's disk",
    529: "As 503, in Anthropic's number",
}
