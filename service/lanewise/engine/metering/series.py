"""Series of encoded texts, of recurrent states and their snapshots, and of the KV store."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from lanewise.engine.base.snapshots import Snapshots
from lanewise.engine.kv.store_parts import REMOTE, REMOTE_BYTES, StoreCounts
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


class StoreSeries:
    """Series that every server exports; they stay 0 without a KV store."""

    def __init__(self, labels: dict[str, str], registry: CollectorRegistry) -> None:
        blocks = Counter(
            "lanewise_kv_store_blocks",
            "Blocks of the KV cache written to the store and read from it; missed: not there any"
            " more or not right; failed: could not be written. Both count snapshots of states too.",
            [*labels, "result"],
            registry=registry,
        )
        self._blocks = {
            name: blocks.labels(**labels, result=name)
            for name in ("written", "read", "missed", "failed")
        }
        states = Counter(
            "lanewise_kv_store_snapshots",
            "Snapshots of states written to the store and read from it.",
            [*labels, "result"],
            registry=registry,
        )
        self._states = {name: states.labels(**labels, result=name) for name in ("written", "read")}
        remote = Counter(
            "lanewise_kv_store_remote_objects",
            "Blocks and snapshots written to kv_store_remote and read from it; missed: not right;"
            " failed: it has not answered in time, or with an error.",
            [*labels, "result"],
            registry=registry,
        )
        self._remote = {name: remote.labels(**labels, result=name) for name in REMOTE}
        n_bytes = Counter(
            "lanewise_kv_store_remote_bytes",
            "Bytes written to kv_store_remote and read from it.",
            [*labels, "result"],
            registry=registry,
        )
        self._bytes = {name: n_bytes.labels(**labels, result=name) for name in REMOTE_BYTES}
        self._saved_s = Counter(
            "lanewise_kv_store_saved_seconds",
            "Estimate: what computing instead of reading would have taken, less what reading took.",
            list(labels),
            registry=registry,
        ).labels(**labels)
        self._read_s = Counter(
            "lanewise_kv_store_read_seconds",
            "Time that reading blocks and snapshots took, beside steps.",
            list(labels),
            registry=registry,
        ).labels(**labels)

    def publish(self, counts: StoreCounts) -> None:
        """Add what was done since the last time."""
        for name, counter in self._blocks.items():
            counter.inc(getattr(counts, name))
        for name, counter in self._states.items():
            counter.inc(getattr(counts, f"states_{name}"))
        for name, counter in self._remote.items():
            counter.inc(counts.remote.get(name, 0))
        for name, counter in self._bytes.items():
            counter.inc(counts.remote.get(f"bytes_{name}", 0))
        self._saved_s.inc(counts.saved_s)
        self._read_s.inc(counts.read_s)
