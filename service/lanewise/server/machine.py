"""What the machine does to the server: its CPU quota and its memory, as metrics and in the log."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lanewise import host

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
MIN_PERIODS = 50  # five seconds of work: a part of fewer says little


class MachineMetrics(Collector):
    """Reads what the control groups count whenever somebody scrapes."""

    def __init__(self, registry: CollectorRegistry, root: Path = host.ROOT) -> None:
        self._root = root
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """What Prometheus scrapes; every series is there without a quota or limit too."""
        throttling, memory = host.cpu_throttling(self._root), host.memory_use(self._root)
        for name, text, value in (
            ("cpu_periods", "Periods of the CPU quota in which anything ran.", throttling.periods),
            (
                "cpu_throttled_periods",
                "Periods before whose end the CPU quota was used up.",
                throttling.throttled_periods,
            ),
            (
                "cpu_throttled_seconds",
                "Time for which the CPU quota stopped the process, of all CPUs together.",
                throttling.seconds,
            ),
        ):
            yield CounterMetricFamily(f"lanewise_{name}", text, value=value)
        yield GaugeMetricFamily(
            "lanewise_memory_limit_bytes",
            "The smallest memory limit of the control groups, else the memory of the host.",
            value=memory.limit,
        )
        yield GaugeMetricFamily(
            "lanewise_memory_used_bytes",
            "What counts against that limit, without file pages that were not used lately.",
            value=memory.used,
        )


async def watch_quota(threads: int, root: Path = host.ROOT, interval_s: float = INTERVAL_S) -> None:
    """Until a CPU quota has stopped the process often in one interval; then say so, once."""
    before = host.cpu_throttling(root)
    while True:
        await asyncio.sleep(interval_s)
        now = host.cpu_throttling(root)
        cost = now.since(before)
        if cost.periods >= MIN_PERIODS and cost.is_much:
            break
        before = now
    quota = host.cpu_quota(root)
    logger.warning(
        "the CPU quota%s stopped the server in %d of %d periods (%.0f %%) within %.0f s;"
        " raise the quota to one CPU more than --threads (now %d), or lower --threads",
        "" if quota is None else f" of {quota:g} CPUs",
        *(cost.throttled_periods, cost.periods, 100 * cost.share, interval_s),
        threads,
    )
