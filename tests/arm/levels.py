"""Run static aarch64 programs at every instruction-set level that Lanewise distinguishes.

    python tests/arm/levels.py ./program [arguments]     one line per level; exits 1 if one failed

LANEWISE_QEMU names the emulator, else it is looked for where .ci installs it and then on PATH.
An instruction that a level lacks ends the program with SIGILL, so a leak is a failure.
"""

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(os.environ.get("LANEWISE_ARM_TOOLS", "/opt/lanewise-arm"))
TIMEOUT_S = 1200  # a busy machine needs several times as long as a quiet one


@dataclass(frozen=True)
class Level:
    """One emulated CPU and the kernel levels it can run."""

    name: str
    cpu: str
    isas: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


_NEON = ("scalar", "neon")
_DOTPROD = (*_NEON, "dotprod")
_I8MM = (*_DOTPROD, "i8mm")
_SVE = (*_I8MM, "sve")

# Whether there is SVE, and how long its vectors are, must not change a bit.
LEVELS = (
    Level("armv8.0", "cortex-a72", _NEON),
    Level("n1", "neoverse-n1", _DOTPROD),  # Graviton2, Altra
    Level("v1-no-sve", "neoverse-v1,sve=off", _I8MM),  # like AmpereOne
    Level("v1-sve256", "neoverse-v1", _SVE),  # Graviton3
    Level("n2-sve128", "neoverse-n2", _SVE),  # like Graviton4
    Level("max-sve128", "max,sve128=on,sme=off", _SVE),
    Level("max-sve256", "max,sve256=on,sme=off", _SVE),
    Level("max-sve512", "max,sve512=on,sme=off", _SVE),
)


# The first CPU of each level: what takes long runs on these, in `make test-all` on all.
EACH_LEVEL = tuple(
    level for i, level in enumerate(LEVELS) if level.isas not in [one.isas for one in LEVELS[:i]]
)


@functools.cache
def emulator() -> str | None:
    """Path of qemu-aarch64, or None when this machine has none."""
    if named := os.environ.get("LANEWISE_QEMU"):
        return shutil.which(named)
    return shutil.which(TOOLS / "qemu10/usr/bin/qemu-aarch64") or shutil.which("qemu-aarch64")


@functools.cache
def missing(level: Level) -> str | None:
    """Why this machine cannot emulate a level, or None if it can."""
    qemu = emulator()
    if qemu is None:
        return "no qemu-aarch64 emulator; install qemu-user or set LANEWISE_QEMU"
    # The exit status of `-cpu help` is 1 where it should be 0.
    known = subprocess.run([qemu, "-cpu", "help"], capture_output=True, text=True, check=False)
    model = level.cpu.split(",")[0]
    if model in known.stdout.split():
        return None
    return f"emulator {qemu} does not know the CPU {model}; qemu 10 does"


def command_of(program: Path, level: Level) -> list[str]:
    """What starts a static program at a level."""
    qemu = emulator()
    assert qemu is not None, missing(level)
    return [qemu, "-cpu", level.cpu, str(program)]


def run(
    program: Path, level: Level, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a static program to its end at a level; `env` is added to the environment."""
    return subprocess.run(
        [*command_of(program, level), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=os.environ | (env or {}),
    )


def main() -> int:
    """Run one program at all levels and print the last line it says at each."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    failed = 0
    for level in LEVELS:
        if reason := missing(level):
            print(f"{level.name:12} skipped: {reason}")
            continue
        done = run(Path(sys.argv[1]), level, *sys.argv[2:])
        lines = (done.stdout + done.stderr).splitlines()
        outcome = "ok" if done.returncode == 0 else f"FAILED({done.returncode})"
        print(f"{level.name:12} {outcome} {lines[-1] if lines else ''}", flush=True)
        failed += done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
