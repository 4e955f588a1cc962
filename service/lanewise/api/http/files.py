"""How many connections the limit of open files leaves room for."""

import logging
import os
import resource
from typing import NamedTuple

logger = logging.getLogger(__name__)

PROBES = 64  # connections beyond the limit, for questions about health and metrics
# Beside what is open when connections begin to be taken: sockets of the sandbox and of traces, an
# adapter's files, /proc, and connections that are being turned away.
SPARE_FILES = 24


class Places(NamedTuple):
    """Connections that may be open, and how many more for probes."""

    connections: int
    probes: int


def places(wanted: int) -> Places:
    """What there is room for now; a line says so if it is less than is wanted."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return Places(wanted, PROBES)
    n_open = len(os.listdir("/proc/self/fd"))
    left = max(2, limit - n_open - SPARE_FILES)
    if left >= wanted + PROBES:
        return Places(wanted, PROBES)
    probes = min(PROBES, max(1, left // 4))
    found = Places(min(wanted, left - probes), probes)
    logger.warning(
        "%d connections and %d probes may be open at once, not %d (max_connections) and %d: this"
        " process may open %d files (ulimit -n) and has %d open",
        *(*found, wanted, PROBES, limit, n_open),
    )
    return found
