"""Series of recurrent states and their snapshots."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from lanewise.engine.snapshots import Snapshots


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
