"""Histograms that one thread fills, with many equal values at a time."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


def size_buckets(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to ``largest``."""
    powers = range(int(math.log10(max(largest, 1))) + 1)
    sizes = (digit * 10**power for power in powers for digit in (1, 2, 5))
    return tuple(float(size) for size in sizes if size <= largest)


class CountedHistogram(Collector):
    """A Prometheus histogram that takes many equal values at once; one thread observes."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: dict[str, str],
        buckets: tuple[float, ...],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = (*buckets, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._exemplars: dict[int, Exemplar] = {}  # the latest of each bucket
        registry.register(self)

    def observe(self, amount: float, times: int = 1, *, trace_id: str | None = None) -> None:
        """Observe a value ``times`` times; ``trace_id`` becomes the bucket's exemplar."""
        self._sum += amount * times
        bucket = bisect_left(self._bounds, amount)
        self._counts[bucket] += times
        if trace_id is not None:
            self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, amount, time.time())

    def add_counted(self, counts: Iterable[int], total: float) -> None:
        """Add values that were counted elsewhere: the number in each bucket, and their sum."""
        self._counts = [old + new for old, new in zip(self._counts, counts, strict=True)]
        self._sum += total

    def collect(self) -> list[HistogramMetricFamily]:
        """The series in the form that Prometheus scrapes."""
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        up_to = zip(map(floatToGoString, self._bounds), accumulate(self._counts), strict=True)
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(up_to)
        for bucket, exemplar in list(self._exemplars.items()):
            buckets[bucket] = (*buckets[bucket][:2], exemplar)
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        return [family]
