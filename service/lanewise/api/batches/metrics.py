"""What operators are told of batches and files."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from lanewise.batches.table import STATUSES


class BatchMetrics:
    """The series of one server's data directory."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answered = Counter(
            "lanewise_batch_requests",
            "Requests of batches that were answered.",
            ["result"],
            registry=registry,
        )
        for result in ("completed", "failed"):
            self._answered.labels(result)
        self.running = Gauge(
            "lanewise_batch_requests_running",
            "Requests of batches that are being answered.",
            registry=registry,
        )
        self._batches = Gauge(
            "lanewise_batches", "Batches by status.", ["status"], registry=registry
        )
        for status in STATUSES:
            self._batches.labels(status)
        self._files = Gauge("lanewise_files", "Files of /v1/files.", registry=registry)
        self._bytes = Gauge("lanewise_files_bytes", "Bytes of these files.", registry=registry)

    def note_answer(self, *, is_good: bool) -> None:
        """Count an answer."""
        self._answered.labels("completed" if is_good else "failed").inc()

    def publish(self, batches: Mapping[str, int], n_files: int, n_bytes: int) -> None:
        """Tell what there is: batches by status, files and their bytes."""
        for status in STATUSES:
            self._batches.labels(status).set(batches.get(status, 0))
        self._files.set(n_files)
        self._bytes.set(n_bytes)
