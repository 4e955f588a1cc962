"""Series of encoded texts, and of recurrent states and their snapshots."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from lanewise.engine.base.snapshots import Snapshots
from lanewise.engine.metering.histograms import CountedHistogram, size_buckets

MAX_TEXTS = 100_000


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
        sizes = size_buckets(MAX_TEXTS)
        self.of_request = CountedHistogram(
            "lanewise_request_texts", "Texts of a request.", labels, sizes, registry
        )
        self.of_step = CountedHistogram(
            "lanewise_step_texts", "Texts in a step.", labels, sizes, registry
        )


class StateSeries:
    """How many snapshots there are, and how often they are used."""

    def __init__(
        self, labels: dict[str, str], registry: CollectorRegistry, n_places: int, n_bytes: int
    ) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, list(labels), registry=registry).labels(**labels)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, list(labels), registry=registry).labels(**labels)

        self._held = gauge(
            "lanewise_state_snapshots", "Snapshots of states from which prompts can continue."
        )
        self._taken = counter("lanewise_state_snapshots_taken", "Snapshots of states taken.")
        self._used = counter(
            "lanewise_state_snapshots_used", "Times that a sequence began with a snapshot."
        )
        gauge("lanewise_state_snapshot_places", "Places for such snapshots.").set(n_places)
        gauge("lanewise_state_bytes", "Memory of states, of snapshots too.").set(n_bytes)
        self._published = (0, 0)

    def publish(self, snapshots: Snapshots) -> None:
        """Update the series."""
        taken, used = self._published
        self._held.set(snapshots.n_held)
        self._taken.inc(snapshots.n_taken - taken)
        self._used.inc(snapshots.n_used - used)
        self._published = snapshots.n_taken, snapshots.n_used
