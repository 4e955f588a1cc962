"""Instructions and modelled cycles of the Arm kernels, on a machine without an Arm CPU.

    python native/bench/arm/bench_arm.py                          everything (minutes)
    python native/bench/arm/bench_arm.py --kernel gemv_q4 --rows 1,8
    python native/bench/arm/bench_arm.py --write native/bench/arm/BASELINE.md

Builds native/ for aarch64, runs every Arm row of the kernel table under emulation and checks its
bits against scalar, counts its instructions and models the cycles of a whole call (model.py).
Does the same for attention, norms and quantization (operations.py). Then counts and models one
decode step and one prefill of a model at every level (steps.py): the bundled model, or --model.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "service")]

import model  # noqa: E402
import operations  # noqa: E402
import steps as whole_steps  # noqa: E402

from lanewise.loading.checkpoints.hub import bundled_model  # noqa: E402

COMPILER = "aarch64-linux-gnu-gcc"
TOOLS = (COMPILER, "gcc", "cmake", model.EMULATOR, model.MCA, model.OBJDUMP, model.NM)
BUILD = ROOT / "build" / "aarch64-tests"
CPU = model.emulated(model.VECTORS[0])
ROWS, PROMPT = (1, 2, 4, 8, 96), 512
# A call's cost is linear in its inputs. The cost of COLS inputs, as many as a layer has, is
# extrapolated from two calls with fewer inputs, which are quick to model.
COLS = 2048


def modelled_cols(rows: int) -> tuple[int, int]:
    return (128, 256) if rows > 8 else (256, 512)


@dataclass
class KernelResult:
    """One row of the kernel table with one number of rows of activations."""

    level: str
    kernel: str
    vectors: int  # bits of a vector of SVE
    rows: int
    macs: int
    instructions: int
    mac_per_cycle: dict[str, float] = field(default_factory=dict)


def main() -> int:
    args = arguments()
    if missing := [tool for tool in TOOLS if find(tool) is None]:
        print(f"bench-arm needs {', '.join(missing)}: see .ci/install_system_packages.sh")
        return 3
    build(BUILD)
    plugin = build_plugin(BUILD)
    kernels = [] if args.steps else bench_kernels(BUILD / "one_kernel", plugin, args)
    others = [] if args.steps else bench_operations(BUILD / "one_operation", plugin, args)
    if not args.steps and not kernels and not others:
        print(f"no Arm kernel with {args.kernel!r} in its name is used for {args.rows} rows")
        return 2
    whole = args.steps or not args.kernel
    steps = whole_steps.bench(BUILD / "one_step", plugin, args) if whole else []
    if args.json:
        results = {"kernels": kernels, "operations": others, "steps": steps}
        print(json.dumps({name: list(map(asdict, rows)) for name, rows in results.items()}))
        return 0
    text = "\n".join([*kernel_table(kernels), *operations.table(others)])
    text += "\n".join(["", *whole_steps.table(steps, args)])
    if args.write:
        args.write.write_text(HEADER + text + "\n")
    print(text)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", default="", metavar="TEXT", help="only symbols that contain it")
    parser.add_argument("--rows", type=rows_list, default=ROWS, help="rows of activations: 1,8")
    parser.add_argument("--steps", action="store_true", help="only the steps of a model")
    parser.add_argument("--model", type=Path, default=bundled_model(), help="a GGUF file")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens before the decode step")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table here")
    return parser.parse_args()


def rows_list(text: str) -> tuple[int, ...]:
    rows = tuple(map(int, text.split(",")))
    if not all(1 <= row <= 4096 for row in rows):
        raise argparse.ArgumentTypeError(f"{text}: 1 to 4096 rows")
    return rows


def find(tool: str) -> str | None:
    """A tool beside this Python, or on PATH."""
    return shutil.which(tool, path=Path(sys.executable).parent) or shutil.which(tool)


def check(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> None:
    """The static programs for aarch64."""
    cmake = find("cmake")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={find('ninja')}"] if find("ninja") else []
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/native/toolchains/aarch64-linux-gnu.cmake"
    options = ["-DLANEWISE_TESTS=ON", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
    check(cmake, "-S", ROOT / "native", "-B", folder, toolchain, *generator, *options)
    jobs = str(os.cpu_count())
    programs = ("one_kernel", "one_operation", "one_step")
    check(cmake, "--build", folder, "--parallel", jobs, "--target", *programs)


def build_plugin(folder: Path) -> Path:
    source, plugin = Path(__file__).parent / "count_blocks.c", folder / "libcount_blocks.so"
    check("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", plugin, source)
    return plugin


def bench_operations(
    program: Path, plugin: Path, args: argparse.Namespace
) -> list[operations.OperationResult]:
    names = [name for name in operations.SIZES if args.kernel in name]
    return operations.bench(program, plugin, CPU, names) if names else []


def calls_of(program: Path, args: argparse.Namespace) -> list[tuple[str, int, int]]:
    """The kernels that are used, with rows and bits of vectors; one without SVE is there once."""
    used = set()
    for vectors in model.VECTORS:
        cpu = model.emulated(vectors)
        listed = check(model.EMULATOR, "-cpu", cpu, program, "--list", *args.rows).splitlines()
        used |= {
            (symbol, int(rows), vectors)
            for _, symbol, rows in map(str.split, listed)
            if vectors == model.VECTORS[0] or symbol.endswith("__sve")
        }
    return sorted(call for call in used if args.kernel in call[0])


def bench_kernels(program: Path, plugin: Path, args: argparse.Namespace) -> list[KernelResult]:
    code, calls = model.Code(program), calls_of(program, args)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda call: bench_kernel(program, plugin, code, *call), calls))


def bench_kernel(
    program: Path, plugin: Path, code: model.Code, symbol: str, rows: int, vectors: int
) -> KernelResult:
    level, cpu = symbol.rpartition("__")[2], model.emulated(vectors)
    places, fewer = code.level(level), modelled_cols(rows)

    def call(cols: int) -> tuple[int, model.Counts]:
        follow = places if cols in fewer else ()
        printed, counts = model.run(plugin, cpu, program, symbol, rows, cols, follow=follow)
        return int(printed), counts

    macs, counts = call(COLS)
    result = KernelResult(level, symbol, vectors, rows, macs, counts.within(places))
    executed = [code.executed(call(cols)[1]) for cols in fewer]
    for core in model.CORES:
        if core.models(level, rows, vectors):
            few, more = (model.cycles(core, instructions) for instructions in executed)
            per_input = (more - few) / (fewer[1] - fewer[0])
            cycles = few + per_input * (COLS - fewer[0])
            result.mac_per_cycle[core.name] = round(macs / cycles, 2)
    return result


HEADER = f"""# What the Arm code costs, without an Arm CPU

Made by `make bench-arm`, which a change to Arm code is followed by: the diff of this file is what
it gained. Instructions are exact. MAC/cycle per core is llvm-mca's model of whole kernel calls
(one panel of 32 outputs, {COLS} inputs), everything in the first cache; `V1/5` and `V1/8` are
Neoverse V1 with two dispatch widths. One row of DotProd is modelled on the cores of I8MM too, to
compare the levels on the same core. A kernel of SVE is there with vectors of 256 bits, and of 128
bits (`/128`) where they use it. Operations that are no matrix products are given in thousands
of instructions and cycles: attention of a decode step over so many tokens, for one KV head with
{operations.GROUP} query heads of {operations.HEAD_DIM} dimensions, norm and quantization of so many
values. Cycles of whole steps are those of each block of instructions in its steady state.

"""


def kernel_table(results: list[KernelResult]) -> list[str]:
    names = [core.name for core in model.CORES]
    if not results:
        return []
    lines = [
        f"| kernel | rows | MAC/instruction | {' | '.join(names)} |",
        "|---" * (3 + len(names)) + "|",
    ]
    for r in results:
        rates = [f"{r.mac_per_cycle[n]:.1f}" if n in r.mac_per_cycle else "" for n in names]
        name = r.kernel if r.vectors == model.VECTORS[0] else f"{r.kernel}/{r.vectors}"
        cells = [name, str(r.rows), f"{r.macs / r.instructions:.2f}", *rates]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
