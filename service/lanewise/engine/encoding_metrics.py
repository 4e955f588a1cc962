"""Metrics of texts that a model turns into vectors or scores."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from lanewise.engine.histograms import CountedHistogram, size_buckets

MOST_TEXTS = 100_000


class EncodingSeries:
    """Series that every server exports; they stay 0 where the model generates text."""

    def __init__(self, labels: dict[str, str], registry: CollectorRegistry) -> None:
        self.texts = Counter(
            "lanewise_encoded_texts", "Texts and pairs run.", list(labels), registry=registry
        ).labels(**labels)
        self.queued_texts = Gauge(
            "lanewise_queued_texts",
            "Texts and pairs that wait for a step.",
            list(labels),
            registry=registry,
        ).labels(**labels)
        sizes = size_buckets(MOST_TEXTS)
        self.of_request = CountedHistogram(
            "lanewise_request_texts", "Texts of a request.", labels, sizes, registry
        )
        self.of_step = CountedHistogram(
            "lanewise_step_texts", "Texts in a step.", labels, sizes, registry
        )
