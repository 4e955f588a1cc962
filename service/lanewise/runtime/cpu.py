"""What the native library knows about this CPU: levels, kernels and measured limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from lanewise.loading.base.formats import TensorType
from lanewise.native.library import NativeError, native

X86_LEVELS = ("scalar", "avx2", "avx512vnni", "avx512vbmi", "amx")  # each contains those before
ARM_LEVELS = ("scalar", "neon", "dotprod", "i8mm", "sve")
ISA_LEVELS = (*X86_LEVELS, *ARM_LEVELS[1:])
MANY_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One row of the kernel table."""

    symbol: str
    isa: str
    weights: str
    min_rows: int
    available: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What this machine can do at most: 1e9 bytes and 1e9 int8 multiply-accumulates per second."""

    read_gb_s: float
    int8_gmac_s: float


def numerics_version() -> int:
    """Version of the numeric contract, part of every hash of logits."""
    return int(native().lib.LW_NUMERICS)


def best_isa() -> str:
    """The best instruction set level of this CPU."""
    return native().text(native().lib.lw_cpu_isa())


def cpu_features() -> list[str]:
    """The CPU features that levels are chosen by."""
    return native().text(native().lib.lw_cpu_features()).split()


def check_isa(isa: str) -> None:
    """Raise NativeError unless this CPU can run the level ``isa``."""
    clib = native()
    clib.check(clib.lib.lw_cpu_check(isa.encode()))


def usable_levels() -> list[str]:
    """The levels that this CPU and this build of the library can run, scalar first."""
    usable = []
    for isa in ISA_LEVELS:
        try:
            check_isa(isa)
        except NativeError:
            continue
        usable.append(isa)
    return usable


def placing_refusal(nodes: Sequence[int]) -> str | None:
    """Why memory cannot be placed on these nodes of the host; None if it can."""
    clib = native()
    try:
        clib.check(clib.lib.lw_numa_check(nodes, len(nodes)))
    except NativeError as error:
        return str(error)
    return None


def set_fetch_ahead(n_bytes: int) -> None:
    """Let kernels ask for weights so long before their use, in this process; 0: not at all.

    NativeError unless it is 0 or the CPU an Arm one.
    """
    clib = native()
    clib.check(clib.lib.lw_set_fetch_ahead(n_bytes))


def kernels() -> list[KernelInfo]:
    """The kernel table, fastest first."""
    clib = native()
    info = clib.ffi.new("lw_kernel_info*")
    rows = []
    for index in range(clib.lib.lw_kernel_count()):
        clib.check(clib.lib.lw_kernel_describe(index, info))
        rows.append(
            KernelInfo(
                symbol=clib.text(info.symbol),
                isa=clib.text(info.isa),
                weights=clib.text(info.weights),
                min_rows=info.min_rows,
                available=bool(info.available),
            )
        )
    return rows


def kernels_in_use(isa: str, weights: str) -> list[str]:
    """The kernels of a level that multiply matrices of a type with one row and with many.

    As choices between kernels stand. NativeError for a level that this CPU lacks, KeyError for
    what is no type.
    """
    clib = native()
    kind, info = TensorType[weights.upper()], clib.ffi.new("lw_kernel_info*")
    found = []
    for rows in (1, MANY_ROWS):
        clib.check(clib.lib.lw_kernel_in_use(isa.encode(), kind, rows, info))
        found.append(clib.text(info.symbol))
    return list(dict.fromkeys(found))


def measure_limits(threads: int, isa: str | None = None) -> Limits:
    """Measure read bandwidth and integer-dot peak with ``threads`` threads; takes a few seconds."""
    clib = native()
    limits = clib.ffi.new("lw_limits*")
    name = clib.ffi.NULL if isa is None else clib.ffi.new("char[]", isa.encode())
    clib.check(clib.lib.lw_measure_limits(threads, name, limits))
    return Limits(read_gb_s=limits.read_gb_s, int8_gmac_s=limits.int8_gmac_s)
