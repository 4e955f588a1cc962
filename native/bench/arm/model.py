"""Counts what an emulated program executes, and models the cycles that Arm cores would need.

Counts are exact: a plugin of the emulator counts every translated block. The model is llvm-mca's
pipeline. Its input is every instruction that a kernel executed from call to return, in order:
decoding, scales, clearing, folding, addresses and branches included. It knows no caches, TLBs or
branch misses: every load is taken to hit the first-level cache.
"""

import bisect
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TURNS = 100  # executions of a block, which reach its steady state
EMULATOR, MCA = "qemu-aarch64", "llvm-mca-19"
OBJDUMP, NM = "llvm-objdump-19", "aarch64-linux-gnu-nm"


@dataclass(frozen=True)
class Core:
    """A core that llvm-mca knows; ``dispatch`` is the macro-operations dispatched in a cycle.

    ``vectors`` is the length of its SVE vectors in bits. For one row, the levels in ``below`` are
    modelled, too, although the core would use a higher one. Only the same core shows whether a
    higher level is worth its layout.
    """

    name: str
    cpu: str
    dispatch: int
    levels: tuple[str, ...]
    below: tuple[str, ...] = ()
    vectors: int = 0

    def models(self, level: str, rows: int, vectors: int) -> bool:
        if level == "sve" and vectors != self.vectors:
            return False
        return level in self.levels or (rows == 1 and level in self.below)


# Each level on the cores that use it. Dispatch widths count macro-operations and come from Arm's
# optimization guides; llvm-mca's own widths count micro-operations. V1 decodes 5 instructions and
# dispatches 8 macro-operations in a cycle: 5 is taken, so that V1 does not look too fast.
LEVELS = ("neon", "dotprod", "i8mm", "sve")
VECTORS = (256, 128)  # bits
CORES = (
    Core("N1", "neoverse-n1", 4, ("neon", "dotprod")),
    Core("V1/5", "neoverse-v1", 5, ("i8mm", "sve"), ("dotprod",), 256),
    Core("V1/8", "neoverse-v1", 8, ("i8mm", "sve"), ("dotprod",), 256),
    Core("N2", "neoverse-n2", 5, ("i8mm", "sve"), ("dotprod",), 128),
    Core("V2", "neoverse-v2", 8, ("i8mm", "sve"), ("dotprod",), 128),
    Core("Ampere1B", "ampere1b", 4, ("i8mm",), ("dotprod",)),
)


def emulated(vectors: int) -> str:
    """The emulator's CPU that has every level and vectors of so many bits."""
    return f"max,sve{vectors}=on"


@dataclass(frozen=True)
class Counts:
    """Blocks of (address, instructions, executions), and the order some were executed in."""

    blocks: Sequence[tuple[int, int, int]]
    trace: Sequence[int]

    def total(self) -> int:
        """Instructions executed by the whole program."""
        return sum(n * executions for _, n, executions in self.blocks)

    def within(self, ranges: Iterable[range]) -> int:
        """Instructions executed by the functions at these addresses."""
        return sum(
            n * executions
            for address, n, executions in self.blocks
            if any(address in r for r in ranges)
        )


def run(
    plugin: Path, cpu: str, program: Path, *arguments: object, follow: Iterable[range] = ()
) -> tuple[str, Counts]:
    """Output and blocks of a program; the order of blocks is kept in the ranges ``follow`` only."""
    with tempfile.NamedTemporaryFile("r", suffix=".counts") as out:
        options = [f"out={out.name}", *(f"range={r.start:x}-{r.stop:x}" for r in follow)]
        command = [EMULATOR, "-cpu", cpu, "-plugin", ",".join([str(plugin), *options])]
        done = subprocess.run(
            [*command, str(program), *map(str, arguments)], capture_output=True, text=True
        )
        if done.returncode != 0:
            shown = " ".join(map(str, (program.name, *arguments)))
            raise SystemExit(f"{shown} on {cpu}: status {done.returncode}\n{done.stderr}")
        blocks, trace = [], []
        for line in out:
            kind, *values = line.split()
            if kind == "block":
                blocks.append((int(values[0], 16), int(values[1]), int(values[2])))
            else:
                trace = [int(value) for value in values]
    return done.stdout, Counts(blocks, trace)


class Code:
    """The functions and instructions of a program."""

    def __init__(self, program: Path) -> None:
        listing = _output(NM, "--print-size", "--defined-only", program)
        rows = [row for line in listing.splitlines() if len(row := line.split()) == 4]
        self.functions = {
            name: range(int(start, 16), int(start, 16) + int(size, 16))
            for start, size, kind, name in rows
            if kind in "tT"
        }
        self.files = _files(program)
        text = _output(OBJDUMP, "-d", "--no-show-raw-insn", "--mattr=+all", program)
        found = re.findall(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*(.*)$", text, re.MULTILINE)
        self._addresses = [int(address, 16) for address, _, _ in found]
        self._text = [_assembly(mnemonic, operands) for _, mnemonic, operands in found]

    def level(self, level: str) -> list[range]:
        """Where the functions of one instruction-set level are."""
        name = re.compile(rf"__{level}(\.\w+)*$")
        return [place for function, place in self.functions.items() if name.search(function)]

    def block(self, address: int, instructions: int) -> list[str]:
        """Consecutive instructions as llvm-mca reads them."""
        first = bisect.bisect_left(self._addresses, address)
        return self._text[first : first + instructions]

    def executed(self, counts: Counts) -> list[str]:
        """The instructions of the blocks that were followed, in their order."""
        return [i for n in counts.trace for i in self.block(*counts.blocks[n][:2])]


def _files(program: Path) -> dict[str, list[range]]:
    """Where each source file's own functions are: local symbols follow the name of their file."""
    files: dict[str, list[range]] = {}
    places: list[range] = []
    for line in _output(NM, "-p", "-a", "-S", program).splitlines():
        match line.split():
            case [_, "a", name]:
                places = files.setdefault(name, [])
            case [start, size, "t", _]:
                places.append(range(int(start, 16), int(start, 16) + int(size, 16)))
    return files


def cycles(core: Core, instructions: Sequence[str]) -> int:
    """The cycles that llvm-mca gives a core for a sequence of instructions."""
    # llvm-mca must not charge calls: the instructions of the called function are in the sequence.
    command = [MCA, "-mtriple=aarch64", f"-mcpu={core.cpu}", "-mattr=+all", "-iterations=1"]
    command += ["-call-latency=1"]
    command += [f"-dispatch={core.dispatch}", "-resource-pressure=0", "-instruction-info=0"]
    text = "\n".join(["target:", *instructions]) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if found is None:
        raise SystemExit(f"{MCA} for {core.cpu}: {done.stderr[:500]}")
    return int(found[1])


def steady_cycles(core: Core, blocks: Sequence[Sequence[str]]) -> list[float]:
    """The cycles of each block when it follows itself, as in a loop."""
    command = [MCA, "-mtriple=aarch64", f"-mcpu={core.cpu}", "-mattr=+all", "-call-latency=1"]
    command += [f"-iterations={TURNS}", f"-dispatch={core.dispatch}"]
    command += ["-skip-unsupported-instructions=lack-sched"]  # system instructions, seldom executed
    command += ["-resource-pressure=0", "-instruction-info=0"]
    lines = ["target:"]
    for number, block in enumerate(blocks):
        lines += [f"# LLVM-MCA-BEGIN {number}", *block, "# LLVM-MCA-END"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
    found = re.findall(r"Total Cycles:\s+(\d+)", done.stdout)
    if len(found) != len(blocks):
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        of_all = f"{len(found)} of {len(blocks)} blocks"
        raise SystemExit(f"{MCA} for {core.cpu}: {of_all}: {errors[:5]}")
    return [int(total) / TURNS for total in found]


def _assembly(mnemonic: str, operands: str) -> str:
    operands = re.sub(r"\s*(//|<).*", "", operands)
    if re.fullmatch(r"b(\..*)?|bl|cbn?z|tbn?z|adr|adrp", mnemonic):
        operands = re.sub(r"0x[0-9a-f]+$", "target", operands)
    return f"{mnemonic} {operands}"


def _output(*command: object) -> str:
    return subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True
    ).stdout
