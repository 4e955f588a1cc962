"""Answers as one object, or as the events that lead to it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lanewise.api.dialects.responses.output import Named, Output, Told
from lanewise.api.dialects.responses.schema import CustomTool, ResponsesRequest, TextFormat
from lanewise.api.errors import ApiError
from lanewise.api.generation.dialect import About
from lanewise.api.generation.events import Choice, Piece, Usage
from lanewise.api.generation.writing import dumps_long
from lanewise.text.sampling_defaults import SamplingDefaults

# What an error inside an answer is called: OpenAI's clients know these alone.
ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request said, as far as its answer repeats it."""

    body: ResponsesRequest
    defaults: SamplingDefaults
    n_items: int  # that the request brought itself
    is_stored: bool
    keep: Callable[[dict[str, Any]], None]  # an answer that is complete


class ResponsesWire:
    """A response."""

    def __init__(self, about: About, asked: Asked) -> None:
        self._about, self._asked = about, asked
        tools = {
            one.name: Named(one.tool.name, one.namespace, isinstance(one.tool, CustomTool))
            for one in asked.body.offered
        }
        self._output = Output(about, tools, asked.n_items)
        self._same = _same(about, asked)
        self._n_events = 0

    def first(self) -> Iterator[str]:
        """Nothing is there yet."""
        begun = self._response("in_progress")
        yield self._event(("created", {"response": begun}))
        yield self._event(("in_progress", {"response": begun}))

    def piece(self, piece: Piece) -> Iterator[str]:
        """Events of all that a token adds."""
        return map(self._event, self._output.take(piece))

    def last(self) -> Iterator[str]:
        """The whole answer."""
        response = self._finished()
        yield self._event((response["status"], {"response": response}))

    def failed(self, error: ApiError) -> Iterator[str]:
        """What there is of the answer, and why there is no more."""
        yield from map(self._event, self._output.finish("length"))
        told = {"code": ERROR_CODES.get(error.status, "server_error"), "message": error.message}
        yield self._event(("failed", {"response": self._response("failed", error=told)}))

    def whole(self, choices: Sequence[Choice]) -> Iterator[str]:
        """The answer alone."""
        for piece in choices[0].pieces:
            for _ in self._output.take(piece):
                pass
        yield dumps_long(self._finished())

    def _finished(self) -> dict[str, Any]:
        if self._output.reason == "length":
            why = {"reason": "max_output_tokens"}
            response = self._response("incomplete", incomplete_details=why)
        else:
            response = self._response("completed", completed_at=int(time.time()))
        response["usage"] = usage_of(self._about.usage)
        if self._about.receipts is not None:
            response["receipts"] = self._about.receipts.made()
        self._asked.keep(response)
        return response

    def _response(self, status: str, **others: Any) -> dict[str, Any]:
        return self._same | {"status": status, "output": self._output.items, **others}

    def _event(self, told: Told) -> str:
        name, members = f"response.{told[0]}", told[1]
        members = {"type": name, "sequence_number": self._n_events, **members}
        self._n_events += 1
        return f"event: {name}\ndata: {dumps_long(members)}\n\n"


def usage_of(usage: Usage) -> dict[str, Any]:
    """The numbers of tokens."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thinking_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _same(about: About, asked: Asked) -> dict[str, Any]:
    """What all forms of an answer have."""
    body, sampling, defaults = asked.body, about.ask.sampling, asked.defaults
    temperature, top_p = sampling.temperature, sampling.top_p
    choice = body.tool_choice
    return {
        "id": f"resp_{about.id}",
        "object": "response",
        "created_at": about.created,
        "completed_at": None,
        "status": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "model": about.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": asked.is_stored,
        "temperature": defaults.temperature if temperature is None else temperature,
        "text": {"format": _form(body.text.format), "verbosity": body.text.verbosity},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_unset=True),
        "tools": [tool.model_dump() for tool in body.tools],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": defaults.top_p if top_p is None else top_p,
        "truncation": body.truncation,
        "usage": None,
        "user": body.user,
    }


def _form(form: TextFormat) -> dict[str, Any]:
    if form.json_schema is None:
        return {"type": form.type}
    return form.model_dump(by_alias=True)
