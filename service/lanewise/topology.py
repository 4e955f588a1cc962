"""Nodes, cores and their memory: what this host has of them, and where threads and weights go.

Every function that reads files takes the root of the file system, so that tests can give it a tree
of their own. guide/decisions/pinning-automatic.md says why ``auto`` is what it is.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lanewise.host import (
    MIB,
    ROOT,
    HostError,
    MemoryLimit,
    core_of,
    cpu_quota,
    format_size,
    read_text,
)

WAYS = {  # what `numa` can come to, and what it means for memory
    "off": "wherever the system puts it",
    "interleave": "weights and KV cache interleaved over {nodes}",
    "replicate": "a copy of the weights on each of {nodes}, KV cache interleaved over them",
}
ONE_NODE = "one memory node"
# Fields of a node's meminfo that programs can have: free, or given back by the kernel when needed.
FREE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core: its hardware threads that this process may use, and its node."""

    cpus: tuple[int, ...]
    node: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The cores this process may use, by their first CPU, and the nodes it may have memory from.

    ``memory`` holds for each such node the bytes that are free or hold only pages of files.
    """

    cores: tuple[Core, ...]
    memory: Mapping[int, int]
    knows_cores: bool  # False: every hardware thread counts as a core

    def nodes(self) -> list[int]:
        """The nodes that cores are on, ascending."""
        return sorted({core.node for core in self.cores})

    def cpus(self, node: int | None = None) -> list[int]:
        """The CPUs of one node or of all, ascending."""
        cores = [core for core in self.cores if node in (None, core.node)]
        return sorted(cpu for core in cores for cpu in core.cpus)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where threads run and memory lies, and why.

    ``cpus`` has the CPU of each thread, or nothing when the system chooses. ``nodes`` are those
    that memory goes to; with ``replicate`` thread i reads the copy on
    ``nodes[replica_of_thread[i]]``.
    """

    cpus: tuple[int, ...]
    threads: str  # what happens to threads, for people
    numa: str  # a key of WAYS
    nodes: tuple[int, ...]
    replica_of_thread: tuple[int, ...]
    memory: str  # what happens to memory, for people


class Wishes(Protocol):
    """The settings that say what is asked for."""

    @property
    def cpu_pinning(self) -> str:
        """auto, on or off."""

    @property
    def numa(self) -> str:
        """auto, off, interleave or replicate."""

    @property
    def load(self) -> str:
        """auto, copy or map."""


def read_topology(root: Path = ROOT, affinity: Collection[int] | None = None) -> Topology:
    """The cores in the affinity mask; a host that says nothing about nodes is one node, 0."""
    allowed = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    folder = root / "sys/devices/system/node"
    memory: dict[int, int] = {}
    node_of: dict[int, int] = {}
    usable = _memory_nodes(root)
    for path in folder.glob("node[0-9]*"):
        node = int(path.name.removeprefix("node"))
        node_of |= dict.fromkeys(parse_list(read_text(path / "cpulist") or ""), node)
        free = _free_memory(path / "meminfo")
        if free is not None and (usable is None or node in usable):
            memory[node] = free
    names = {cpu: core_of(cpu, root) for cpu in allowed}
    cores: dict[object, list[int]] = {}
    for cpu in allowed:
        cores.setdefault(names[cpu] or cpu, []).append(cpu)
    return Topology(
        tuple(Core(tuple(cpus), node_of.get(cpus[0], 0)) for cpus in cores.values()),
        memory,
        all(names.values()),
    )


def _memory_nodes(root: Path) -> set[int] | None:
    """The nodes that the cpuset lets this process have memory from; None if nothing says so."""
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            return set(parse_list(value))
    return None


def _free_memory(path: Path) -> int | None:
    """Bytes of a node that are free or hold pages of files; None if it has no memory at all."""
    fields: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        words = line.split()  # Node 0 MemTotal: 1234 kB
        if len(words) >= 4 and words[3].isdigit():
            fields[words[2].rstrip(":")] = int(words[3]) * 1024
    if not fields.get("MemTotal"):
        return None
    return sum(fields.get(name, 0) for name in FREE)


def parse_list(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it: ``0-3,8``."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def format_list(numbers: Iterable[int]) -> str:
    """The same the other way round."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def choose_cpus(topology: Topology, threads: int) -> list[int]:
    """A CPU for each thread: one to a core while there are cores, on the fewest nodes that do.

    Several nodes get equal numbers, since each has its own share of the memory bandwidth. There
    must be as many CPUs as threads.
    """
    depth = 1  # hardware threads of a core that are used
    while sum(len(core.cpus[:depth]) for core in topology.cores) < threads:
        depth += 1
    seats: dict[int, list[int]] = {}
    for level in range(depth):
        for core in topology.cores:
            seats.setdefault(core.node, []).extend(core.cpus[level : level + 1])
    used: list[int] = []
    for node in sorted(seats, key=lambda node: (-len(seats[node]), node)):
        if sum(len(seats[other]) for other in used) < threads:
            used.append(node)
    counts = dict.fromkeys(sorted(used), 0)
    for _ in range(threads):
        counts[min((n for n in counts if counts[n] < len(seats[n])), key=counts.__getitem__)] += 1
    return [cpu for node, count in counts.items() for cpu in seats[node][:count]]


def place(
    wishes: Wishes,
    threads: int,
    *,
    weight_bytes: int | None,
    limit: MemoryLimit,
    refusal: Callable[[Sequence[int]], str | None],
    root: Path = ROOT,
    affinity: Collection[int] | None = None,
) -> Placement:
    """Where threads and memory go. HostError when what was asked for cannot be had.

    ``refusal`` says why the system does not let us place memory on nodes, or None when it does;
    with ``weight_bytes`` None the result tells what depends on them.
    """
    topology = read_topology(root, affinity)
    reason = _why_not_pinned(wishes.cpu_pinning, threads, topology, cpu_quota(root))
    cpus = choose_cpus(topology, threads) if reason is None else []
    node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
    places = [node_of[cpu] for cpu in cpus]
    nodes = sorted({*(places or topology.nodes())} & topology.memory.keys())
    free = {node: topology.memory[node] for node in nodes}
    may_move = reason == _others_may_use(threads, topology)
    numa, why = _choose_numa(wishes, free, reason, weight_bytes, limit, may_move)
    if numa != "off" and (refused := refusal(nodes)) is not None:
        numa, why = "off", f"{numa} is not possible here: {refused}"
    names = f"node{'s' * (len(nodes) != 1)} {', '.join(map(str, nodes))}"
    return Placement(
        cpus=tuple(cpus),
        threads=f"not pinned: {reason}" if reason else _threads_text(topology, cpus, places),
        numa=numa,
        nodes=tuple(nodes) if numa != "off" else (),
        # A node without memory reads the first copy.
        replica_of_thread=tuple(nodes.index(node) if node in nodes else 0 for node in places)
        if numa == "replicate"
        else (),
        memory=f"{WAYS[numa].format(nodes=names)}: {why}",
    )


def _threads_text(topology: Topology, cpus: Sequence[int], places: Sequence[int]) -> str:
    shares = ", ".join(f"{places.count(node)} on node {node}" for node in sorted({*places}))
    total = f" of {len(topology.cpus())}" if len(cpus) < len(topology.cpus()) else ""
    return f"pinned to CPUs {format_list(cpus)}{total} ({shares})"


def _why_not_pinned(
    cpu_pinning: str, threads: int, topology: Topology, quota: float | None
) -> str | None:
    cpus, cores = len(topology.cpus()), len(topology.cores)
    if cpu_pinning == "off":
        return "as asked for"
    if cpu_pinning == "on":
        if threads > cpus:
            raise HostError(
                f"cpu_pinning is on and threads is {threads}; "
                f"accepted: at most {cpus}, the CPUs in the affinity mask"
            )
        return None
    if not topology.knows_cores:
        return "physical cores unknown"
    if quota is not None and quota < cpus:
        return f"a CPU quota ({quota:g} CPUs) shares the cores with others"
    return _others_may_use(threads, topology) if threads != cores else None


def _others_may_use(threads: int, topology: Topology) -> str:
    return f"{threads} threads and {len(topology.cores)} cores, which others may use too"


def _choose_numa(
    wishes: Wishes,
    free: Mapping[int, int],
    not_pinned: str | None,
    weight_bytes: int | None,
    limit: MemoryLimit,
    may_move: bool,
) -> tuple[str, str]:
    """A key of WAYS, and why; ``free`` has the bytes of each node that memory may go to.

    With ``may_move`` threads run wherever there are free cores, on any of the nodes.
    """
    if wishes.numa == "off":
        return "off", "as asked for"
    if len(free) < (1 if wishes.numa == "interleave" else 2):
        return "off", ONE_NODE
    if wishes.numa != "auto":
        _check_asked(wishes, not_pinned)
        if wishes.numa == "replicate":
            _check_copies(free, weight_bytes or 0, limit)
        return wishes.numa, "as asked for"
    if not_pinned is not None and not may_move:
        return "off", "threads are not pinned"
    if wishes.load == "map":
        return "off", "load is map, and pages of a file cannot be moved"
    if may_move:
        return "interleave", "threads may run on any of them; cpu_pinning on keeps each on a core"
    most = min(limit.n_bytes // (2 * len(free)), *free.values())
    if weight_bytes is None:
        return "replicate", f"if the weights take at most {format_size(most)}, else interleave"
    if weight_bytes <= most:
        size = format_size(weight_bytes)
        return "replicate", f"{len(free)} copies of {size} are at most half the memory"
    return "interleave", f"a copy of the weights may take {format_size(most)}"


def _check_asked(wishes: Wishes, not_pinned: str | None) -> None:
    """Raise HostError when ``numa`` contradicts other settings."""
    if wishes.load == "map":
        raise HostError(
            f"load is map and numa is {wishes.numa}, but pages of a file stay where they are; "
            "accepted: load auto or copy, or numa off"
        )
    if wishes.numa == "replicate" and not_pinned is not None:
        raise HostError(
            f"numa is replicate and threads are not pinned ({not_pinned}); accepted: cpu_pinning on"
        )


def _check_copies(free: Mapping[int, int], weight_bytes: int, limit: MemoryLimit) -> None:
    """Raise HostError when there is no room for a copy of the weights on each node."""
    tightest = min(free, key=free.__getitem__)
    margin = max(256 * MIB, limit.n_bytes // 20)
    need = f"numa is replicate: {len(free)} copies of {format_size(weight_bytes)} of weights"
    if len(free) * weight_bytes + margin > limit.n_bytes:
        raise HostError(
            f"{need} do not fit into {format_size(limit.n_bytes)} ({limit.reason}) less a margin "
            f"of {format_size(margin)}; accepted: numa interleave or off, or more memory"
        )
    if weight_bytes > free[tightest]:
        raise HostError(
            f"{need}, and node {tightest} has {format_size(free[tightest])} free; "
            "accepted: numa interleave or off, or more memory on that node"
        )
