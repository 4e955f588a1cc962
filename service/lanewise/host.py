"""What this host lets the process use: threads, memory and room for the KV cache, with reasons.

Every function takes the root of the file system, so that tests can give it a tree of their own.
"""

import ctypes
import gc
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lanewise.arm_parts import ARM_PARTS

ROOT = Path("/")
MAX_THREADS = 1024  # LW_MAX_THREADS of the library
GIB = 1 << 30
MIB = 1 << 20
# v1 writes "no limit" as the largest multiple of a page below 2**63.
UNLIMITED_V1 = 1 << 62
# Of a server's dozen threads each has a stack and, of which little is used, 64 MiB for what it
# allocates; two that compile grammars have stacks of 64 MiB.
ADDRESSES = 5 << 28
MUCH_THROTTLED = 0.05  # of the periods; less are the bursts of a start


class HostError(Exception):
    """This host has too little of something; the message says of what, and what would help."""


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """How many threads compute when no setting says so, and why."""

    threads: int
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory that this process may come to hold, and where the limit is from.

    ``dedicated`` tells a limit set for this process from what the host happens to have free.
    """

    n_bytes: int
    reason: str
    dedicated: bool


@dataclass(frozen=True, slots=True)
class Throttling:
    """What a CPU quota has cost since its control group was made; all 0 where there is none.

    ``seconds`` are those of all CPUs together, so that a second may cost several.
    """

    periods: int  # in which anything ran
    throttled_periods: int  # before whose end the quota was used up
    seconds: float

    def since(self, before: "Throttling") -> "Throttling":
        """What came after ``before``."""
        return Throttling(
            self.periods - before.periods,
            self.throttled_periods - before.throttled_periods,
            self.seconds - before.seconds,
        )

    @property
    def share(self) -> float:
        """The throttled part of the periods, 0 to 1."""
        return self.throttled_periods / self.periods if self.periods else 0.0

    @property
    def is_much(self) -> bool:
        """Whether threads keep waiting for others that the quota has stopped."""
        return self.share > MUCH_THROTTLED


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use under the limit, of those that the kernel cannot just drop, and the limit."""

    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class StateSizes:
    """What the states of sequences take, where layers of the model keep any."""

    n_bytes: int = 0  # of one sequence
    snapshot_memory: int | None = None  # None: one snapshot for each ``snapshot_blocks``
    snapshot_blocks: int = 1  # of the KV cache


NO_STATES = StateSizes()


@dataclass(frozen=True, slots=True)
class KvChoice:
    """Blocks of KV cache that fit, and why not more."""

    blocks: int
    n_bytes: int  # of the blocks
    reason: str
    max_seqs: int  # their states leave half of the memory to keys and values
    n_snapshots: int = 0  # of states
    state_bytes: int = 0  # of those and of the states of sequences that run


def default_threads(root: Path = ROOT, affinity: Collection[int] | None = None) -> ThreadChoice:
    """The smallest of the CPU quota, the affinity mask and the physical cores in that mask.

    A second thread on a core shares its vector units, and threads above the quota are stopped for
    most of every period while the others wait for them, so both cost speed instead of giving any.
    """
    cpus = os.sched_getaffinity(0) if affinity is None else affinity
    quota = cpu_quota(root)
    cores = physical_cores(cpus, root)
    limits = [(max(1, int(quota)), f"CPU quota of {quota:g} CPUs")] if quota is not None else []
    limits.append((max(1, len(cpus)), f"affinity mask of {count(len(cpus), 'CPU')}"))
    if cores is not None:
        limits.append((cores, count(cores, "physical core")))
    threads, reason = min(limits, key=lambda limit: limit[0])
    others = [text for _, text in limits if text != reason]
    others += ["no CPU quota"] if quota is None else []
    others += ["physical cores unknown"] if cores is None else []
    return ThreadChoice(min(threads, MAX_THREADS), f"{reason} ({', '.join(others)})")


def has_spare_cpu(threads: int, root: Path = ROOT, affinity: Collection[int] | None = None) -> bool:
    """Whether quota and affinity mask leave a CPU beside so many threads that compute."""
    cpus = len(os.sched_getaffinity(0) if affinity is None else affinity)
    quota = cpu_quota(root)
    return threads + 1 <= (cpus if quota is None else min(cpus, quota))


def count(number: int, noun: str) -> str:
    """A number with its noun, in the plural where that is right."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def physical_cores(cpus: Collection[int], root: Path = ROOT) -> int | None:
    """Cores that ``cpus`` lie on, hardware threads of one core counted once; None if not known."""
    cores = {core_of(cpu, root) for cpu in cpus}
    return len(cores) or None if None not in cores else None


def core_of(cpu: int, root: Path = ROOT) -> str | None:
    """The hardware threads of a CPU's core, as the kernel lists them; None if not known."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    names = ("core_cpus_list", "thread_siblings_list")  # the second is what older kernels have
    return next(filter(None, (read_text(topology / name) for name in names)), None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the control groups grant, or None; below 1 is possible."""
    quotas = []
    for version, folder in cgroup_folders(root, "cpu"):
        if version == 2:
            words = (read_text(folder / "cpu.max") or "max").split()
        else:
            words = [
                read_text(folder / f"cpu.cfs_{name}_us") or "-1" for name in ("quota", "period")
            ]
        quota = _number(words[0])
        period = _number(words[1]) if len(words) > 1 else 100_000
        if quota is not None and quota > 0 and period is not None and period > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def cpu_throttling(root: Path = ROOT) -> Throttling:
    """What CPU quotas have cost, by the control group above the process that counted most."""
    stats = [_numbers(folder / "cpu.stat") for _, folder in cgroup_folders(root, "cpu")]
    # Each on its own, so that none ever shrinks; a group's quota counts for all groups within it.
    # Microseconds in version 2 of the interface, nanoseconds in version 1.
    seconds = [s.get("throttled_usec", 0) / 1e6 + s.get("throttled_time", 0) / 1e9 for s in stats]
    return Throttling(
        max((stat.get("nr_periods", 0) for stat in stats), default=0),
        max((stat.get("nr_throttled", 0) for stat in stats), default=0),
        max(seconds, default=0.0),
    )


def memory_use(root: Path = ROOT) -> MemoryUse:
    """What is used of the smallest limit: a control group's, or else the whole host's memory.

    Pages of files that were not used lately do not count, as the kernel drops them when it needs
    memory. 0 of 0 where the system does not tell.
    """
    total = total_memory(root)
    used = total - (_meminfo(root, "MemAvailable") or total)
    uses = [MemoryUse(used, total)] if total else []
    for n_bytes, version, path in _memory_limits(root):
        uses.append(MemoryUse(held_bytes(path.parent, version), n_bytes))
    return min(uses, key=lambda use: use.limit, default=MemoryUse(0, 0))


def held_bytes(group: Path, version: int) -> int:
    """What a control group holds, but for pages of files that were not used lately."""
    names = ("memory.current", "inactive_file")
    if version == 1:
        names = ("memory.usage_in_bytes", "total_inactive_file")
    held = _number(read_text(group / names[0])) or 0
    idle = _numbers(group / "memory.stat").get(names[1], 0)
    return max(0, held - idle)


def memory_limit(root: Path = ROOT) -> MemoryLimit:
    """The smallest limit of any control group above the process, or what the host has available.

    Or what may still be mapped (ulimit -v), if that is less: libraries end a process that may not.

    What is available shrinks while a model is loaded, so ask before loading it.
    """
    available = _meminfo(root, "MemAvailable")
    limits = [MemoryLimit(available, "memory available on this host", False)] if available else []
    for n_bytes, _, path in _memory_limits(root):
        limits.append(MemoryLimit(n_bytes, f"control group limit {path}", True))
    if (left := _address_space(root)) is not None:
        why = f"what ulimit -v leaves beside {format_size(ADDRESSES)} for threads"
        limits.append(MemoryLimit(left, why, True))
    if not limits:
        raise HostError(
            f"{root / 'proc/meminfo'}: no MemAvailable, and no control group has a limit"
        )
    return min(limits, key=lambda limit: limit.n_bytes)


def choose_kv_blocks(
    *,
    kv_memory: int | None,
    limit: MemoryLimit,
    packed_bytes: int,
    block_bytes: int,
    max_seqs: int,
    max_model_len: int,
    sequence_blocks: int,
    states: StateSizes = NO_STATES,
    held_bytes: int = 0,
) -> KvChoice:
    """KV blocks for the memory asked for, or else for a share of what the model leaves free.

    The share is 80 % of a limit of our own and 50 % of a host that others use too, or what
    ``held_bytes`` of requests and their texts leave, if that is less. There are never
    more blocks than ``max_seqs`` sequences of ``max_model_len`` tokens could hold, each at most
    ``sequence_blocks``. The memory also holds states of so many sequences, or of fewer where those
    would take more than half of it, and snapshots.
    """
    n_bytes, reason = _kv_share(kv_memory, limit, packed_bytes, held_bytes)
    if states.n_bytes:
        for_both = n_bytes - (states.snapshot_memory or 0)
        max_seqs = max(1, min(max_seqs, for_both // (2 * states.n_bytes)))
    useful, of_rows = max_seqs * sequence_blocks, max_seqs * states.n_bytes
    if states.snapshot_memory is None or not states.n_bytes:
        per = states.snapshot_blocks  # of which each has a snapshot
        blocks = per * (n_bytes - of_rows) // (per * block_bytes + states.n_bytes)
    else:
        blocks = (n_bytes - of_rows - states.snapshot_memory) // block_bytes
    if blocks < 1:
        what = f"at least one block of {format_size(block_bytes)}"
        how = "raise the limit, or take a smaller model"
        if states.n_bytes:
            of_states = format_size(of_rows + (states.snapshot_memory or 0))
            what += f" beside {of_states} for the states of one sequence and snapshots"
            how = "raise the limit, or lower snapshot_memory"
        raise HostError(
            f"kv_memory: {format_size(max(0, n_bytes))} ({reason}); accepted: {what} ({how})"
        )
    if kv_memory is None and blocks >= useful:
        blocks, reason = useful, f"all that {max_seqs} sequences of {max_model_len} tokens can use"
    n_snapshots = 0
    if states.n_bytes:
        wanted = -(-blocks // states.snapshot_blocks) * states.n_bytes
        memory = wanted if states.snapshot_memory is None else states.snapshot_memory
        left = n_bytes - of_rows - blocks * block_bytes
        n_snapshots = min(memory, left) // states.n_bytes
    state_bytes = of_rows + n_snapshots * states.n_bytes
    return KvChoice(blocks, blocks * block_bytes, reason, max_seqs, n_snapshots, state_bytes)


def _kv_share(
    kv_memory: int | None, limit: MemoryLimit, packed_bytes: int, held_bytes: int
) -> tuple[int, str]:
    """Memory for keys, values and states, and why not more."""
    if kv_memory is not None:
        return kv_memory, "the memory asked for"
    margin = max(256 * MIB, limit.n_bytes // 20)
    left = limit.n_bytes - packed_bytes - margin
    share = 0.8 if limit.dedicated else 0.5
    n_bytes, what, less = int(share * left), f"{share:.0%} of ", ""
    if left - held_bytes < n_bytes:
        n_bytes, what, less = left - held_bytes, "", f" and {format_size(held_bytes)} for requests"
    return n_bytes, (
        f"{what}{format_size(limit.n_bytes)} ({limit.reason}) less {format_size(packed_bytes)} of"
        f" weights and a margin of {format_size(margin)}{less}"
    )


def cpu_name(root: Path = ROOT) -> str:
    """The CPU's name, from its maker's code on Arm, where the kernel gives no name."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    part = (fields.get("CPU implementer", ""), fields.get("CPU part", ""))
    return ARM_PARTS.get(part) or " ".join(filter(None, ["Arm", *part])) if part[0] else "unknown"


def huge_pages(root: Path = ROOT) -> str:
    """How this kernel hands out huge pages, in words."""
    setting = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = [word.strip("[]") for word in setting.split() if word.startswith("[")]
    reserved = _number(read_text(root / "proc/sys/vm/nr_hugepages")) or 0
    return f"transparent: {chosen[0] if chosen else 'not supported'}; reserved: {reserved}"


def total_memory(root: Path = ROOT) -> int:
    """Memory of this host; 0 if not known."""
    return _meminfo(root, "MemTotal") or 0


def format_size(n_bytes: int) -> str:
    """Bytes as text with a binary unit."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if n_bytes >= size:
            return f"{n_bytes / size:.2f} {unit}"
    return f"{n_bytes} bytes"


def _memory_limits(root: Path) -> Iterator[tuple[int, int, Path]]:
    """Limits of the control groups: bytes, the version of the interface, and the file."""
    for version, folder in cgroup_folders(root, "memory"):
        names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
        for name in names:
            n_bytes = _number(read_text(folder / name))
            if n_bytes is not None and n_bytes < UNLIMITED_V1:
                yield n_bytes, version, folder / name


def cgroup_folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """The control groups the process is in, innermost first, with the version of their interface.

    The path in /proc/self/cgroup starts at the hierarchy's root, the mount may show only a part of
    it (a container without a namespace of its own), so the part the mount leaves out is cut off.
    """
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        is_v2 = number == "0" and not names
        if not is_v2 and controller not in names.split(","):
            continue
        for mounted, mount in _cgroup_mounts(root, None if is_v2 else controller):
            inside = path.removeprefix(mounted) if mounted != "/" else path
            parts = [part for part in inside.split("/") if part not in ("", "..")]
            if not mount.joinpath(*parts).is_dir():
                parts = []
            for depth in range(len(parts), -1, -1):
                yield (2 if is_v2 else 1), mount.joinpath(*parts[:depth])


def _cgroup_mounts(root: Path, controller: str | None) -> Iterator[tuple[str, Path]]:
    """(root inside the hierarchy, mount point) of v2 or of the v1 hierarchy of a controller."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, source = before.split(), after.split()
        if len(fields) < 5 or len(source) < 3:
            continue
        kind, options = source[0], source[2].split(",")
        if kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options:
            yield fields[3], root / fields[4].lstrip("/")


def _address_space(root: Path) -> int | None:
    """Bytes that may still be mapped, but for what threads take; None where there is no limit."""
    for line in (read_text(root / "proc/self/limits") or "").splitlines():
        if line.startswith("Max address space") and (most := _number(line.split()[3])) is not None:
            pages = (read_text(root / "proc/self/statm") or "0").split()[0]
            return max(0, most - int(pages) * os.sysconf("SC_PAGE_SIZE") - ADDRESSES)
    return None


def _meminfo(root: Path, key: str) -> int | None:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            kib = _number(value.split()[0])
            return None if kib is None else kib * 1024
    return None


def _numbers(path: Path) -> dict[str, int]:
    """A file of lines that are a name and a number each."""
    pairs = (line.split() for line in (read_text(path) or "").splitlines())
    found = {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}
    return {name: number for name, number in found.items() if number is not None}


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:  # "max", or a file that this kernel does not have
        return None


def read_text(path: Path) -> str | None:
    """What is in a file, without the white space around it; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def give_back_memory() -> None:
    """Return freed memory to the system, where the C library can: it keeps it for later uses."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def garbage_left_alone(*, for_good: bool = False) -> Iterator[None]:
    """Do not look for garbage in the block; ``for_good``: nor later among all that is there then.

    Where much is made that stays, looking for garbage takes a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        gc.enable()
