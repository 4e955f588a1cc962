"""What a Lanewise server's own metrics say of its time: how much of it was not computing."""

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from loadtests.http_stream import Target

SAMPLES = ("lanewise_busy_seconds_total", "lanewise_native_seconds_total", "lanewise_steps_total")


@dataclass(frozen=True, slots=True)
class ServerTime:
    """Seconds with sequences to run, those inside the native library, and forward steps."""

    busy_s: float
    native_s: float
    steps: float

    def since(self, earlier: "ServerTime") -> "ServerTime":
        """What passed between two readings."""
        return ServerTime(
            self.busy_s - earlier.busy_s,
            self.native_s - earlier.native_s,
            self.steps - earlier.steps,
        )

    @property
    def outside_share(self) -> float | None:
        """Part of the busy time outside the native library, 0 to 1."""
        return 1 - self.native_s / self.busy_s if self.busy_s > 0 else None

    @property
    def outside_us_per_step(self) -> float | None:
        """Microseconds outside the native library for each forward step."""
        return 1e6 * (self.busy_s - self.native_s) / self.steps if self.steps > 0 else None


def read_server_time(target: Target) -> ServerTime | None:
    """From ``/metrics``; None when the server is another one or does not show its metrics."""
    try:
        with urllib.request.urlopen(target.url("/metrics"), timeout=10) as answer:
            text = answer.read().decode()
        values = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in SAMPLES
        }
    except (OSError, ValueError):
        return None
    return ServerTime(*(values[name] for name in SAMPLES)) if len(values) == 3 else None
