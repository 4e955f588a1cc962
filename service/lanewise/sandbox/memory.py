"""Memory of this process."""

import resource
from pathlib import Path


def virtual_bytes() -> int:
    """Addresses in use."""
    return _pages(0) * resource.getpagesize()


def resident_bytes() -> int:
    """Memory that is there."""
    return _pages(1) * resource.getpagesize()


def _pages(field: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[field])
