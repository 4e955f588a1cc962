"""What operators see of a model that is pooled, beside vLLM's series of the same names."""

from prometheus_client import Counter, Gauge

from lanewise.engine.histograms import CountedHistogram, size_buckets
from lanewise.engine.metrics import Metrics
from lanewise.engine.text_queue import EncodingJob

MOST_TEXTS = 100_000


class EncodingMetrics:
    """Series of texts, in the registry of the others; the engine's thread fills them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        labels, registry = metrics.labels, metrics.registry
        self._texts = Counter(
            "lanewise_encoded_texts", "Texts and pairs run.", list(labels), registry=registry
        ).labels(**labels)
        self.queued_texts = Gauge(
            "lanewise_queued_texts",
            "Texts and pairs that wait for a step.",
            list(labels),
            registry=registry,
        ).labels(**labels)
        sizes = size_buckets(MOST_TEXTS)
        self._of_request = CountedHistogram(
            "lanewise_request_texts", "Texts of a request.", labels, sizes, registry
        )
        self._of_step = CountedHistogram(
            "lanewise_step_texts", "Texts in a step.", labels, sizes, registry
        )

    def note_step(self, n_texts: int, n_tokens: int, seconds: float) -> None:
        """A step has run so many texts of so many tokens."""
        self._texts.inc(n_texts)
        self._of_step.observe(n_texts)
        self._metrics.count_prompts(0, n_tokens)
        self._metrics.step_tokens.observe(n_tokens)
        self._metrics.native_steps.inc()
        self._metrics.native_seconds.inc(seconds)
        self._metrics.busy_seconds.inc(seconds)

    def note_answer(self, job: EncodingJob, now: float) -> None:
        """A request has all its rows."""
        self._of_request.observe(len(job.request.texts))
        self._metrics.e2e.observe(now - job.arrived, trace_id=job.trace_id)
        self._metrics.prompt_size.observe(job.n_tokens)
        if job.started is not None:
            self._metrics.inference.observe(now - job.started)
            self._metrics.prefill.observe(now - job.started)
