"""Traces: a span for each request, with its time in the queue, in its prompt and in its answer.

Spans follow OpenTelemetry's conventions for generative AI and go to a collector over OTLP/HTTP. A
caller's W3C ``traceparent`` is continued, and ours is in the answer's ``traceresponse``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lanewise.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from lanewise.api.observing.record import Record


class Tracer:
    """Makes spans and sends them from a thread of its own."""

    def __init__(self, endpoint: str, version: str) -> None:
        """``endpoint`` is a collector's ``http://host:4318/v1/traces``.

        Where the package for it is missing, SettingsError. How many requests are traced, what the
        service is called and more follows OTEL_… variables.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise SettingsError(
                f"otlp_traces_endpoint needs {error.name}; accepted: after"
                " `pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`"
            ) from None
        name = os.environ.get("OTEL_SERVICE_NAME", "lanewise")
        resource = Resource.create({"service.name": name, "service.version": version})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("lanewise", version)
        self._propagator = TraceContextTextMapPropagator()
        self._server = SpanKind.SERVER

    def begin(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Span:
        """The span of a request that has come."""
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        return self._tracer.start_span(
            f"{method} {path}",
            context=self._propagator.extract(carrier),
            kind=self._server,
            attributes={"http.request.method": method, "url.path": path},
        )

    def trace_id(self, span: Span) -> str | None:
        """Where the span can be found; None if the collector gets none of its trace."""
        context = span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else None

    def written(self, span: Span) -> bytes:
        """A span as headers name it, in requests and answers."""
        context = span.get_span_context()
        value = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        return value.encode()

    def end(self, span: Span, route: str, status: int, record: Record | None) -> None:
        """The request is over: say what became of it."""
        if not span.is_recording():
            return  # its trace is not sampled: it has not even a name
        from opentelemetry.trace import Status, StatusCode

        span.update_name(f"{span.name.partition(' ')[0]} {route}")  # type: ignore[attr-defined]
        span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= 500 or status == 0:
            span.set_status(Status(StatusCode.ERROR))
        if record is not None:
            span.set_attributes(attributes_of(record))
            self._add_phases(span, record)
        span.end()

    def _add_phases(self, span: Span, record: Record) -> None:
        from opentelemetry.trace import set_span_in_context

        moments = record.usage.times.moments
        if moments is None:
            return
        offset_ns = time.time_ns() - time.monotonic_ns()
        ends = {
            "queue": (moments.arrived, moments.started),
            "prefill": (moments.started, moments.first_token),
            "decode": (moments.first_token, time.monotonic()),
        }
        for name, (begin, end) in ends.items():
            if begin is None or end is None:
                continue
            child = self._tracer.start_span(
                name,
                context=set_span_in_context(span),
                start_time=offset_ns + int(1e9 * begin),
            )
            child.end(offset_ns + int(1e9 * end))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def attributes_of(record: Record) -> dict[str, Any]:
    """What the conventions for generative AI have names for."""
    ask, sampling = record.ask, record.ask.sampling
    made = {
        "gen_ai.operation.name": "chat" if hasattr(ask.input, "messages") else "text_completion",
        "gen_ai.provider.name": "lanewise",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.request.choice.count": ask.n,
        "gen_ai.request.max_tokens": ask.ending.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.response.finish_reasons": record.reasons,
        "gen_ai.usage.input_tokens": record.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": record.usage.completion_tokens,
        "lanewise.cached_tokens": record.usage.cached_tokens,
        "lanewise.tools": len(ask.tools.callable),
        "lanewise.dialect": record.operation,
    }
    return {name: value for name, value in made.items() if value is not None}
