"""`make bench-arm` counts what a kernel executes, exactly, and models its cycles."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import topics

pytestmark = [pytest.mark.arm, pytest.mark.slow]

SCRIPT = Path(__file__).resolve().parents[2] / "native" / "bench" / "arm" / "bench_arm.py"
sys.path.append(str(SCRIPT.parent))

import bench_arm as bench  # noqa: E402

KERNEL = "gemv_q4g32_q8g32_1x32__dotprod"


def bench_arm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def ready(cross_build) -> None:
    """The programs that the script would build, and the tools that it needs."""
    for tool in ("qemu-aarch64", "llvm-mca-19", "llvm-objdump-19"):
        if shutil.which(tool) is None:
            topics.skip("arm", f"no {tool} to model Arm cores with")
    cross_build("one_kernel")
    cross_build("one_operation")
    cross_build("one_step")


def test_a_kernel_is_counted_and_modelled(ready) -> None:
    runs = [bench_arm("--kernel", KERNEL, "--rows", "1,8", "--json") for _ in range(2)]
    for run in runs:
        assert run.returncode == 0, run.stdout + run.stderr
    assert runs[0].stdout == runs[1].stdout
    results = json.loads(runs[0].stdout)
    assert results["steps"] == []
    (row,) = results["kernels"]  # eight rows use another kernel
    assert (row["kernel"], row["level"], row["rows"]) == (KERNEL, "dotprod", 1)
    assert row["macs"] == 32 * 2048
    sdots = row["macs"] / 16
    assert 2 * sdots < row["instructions"] < 8 * sdots
    cores = list(row["mac_per_cycle"])  # those of I8MM to compare with
    assert cores == ["N1", "V1/5", "V1/8", "N2", "V2", "Ampere1B"]
    assert 4 < row["mac_per_cycle"]["N1"] < 32  # two SDOT a cycle are 32


def test_a_kernel_of_sve_is_counted_with_each_length_of_vectors_that_uses_it(ready) -> None:
    run = bench_arm("--kernel", "1x32__sve", "--rows", "1", "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    rows = {(row["kernel"], row["vectors"]): row for row in json.loads(run.stdout)["kernels"]}
    long, short = (rows["gemv_bf16_f32_1x32__sve", vectors] for vectors in (256, 128))
    assert list(long["mac_per_cycle"]) == ["V1/5", "V1/8"]
    assert list(short["mac_per_cycle"]) == ["N2", "V2"]
    assert 1.5 < short["instructions"] / long["instructions"] < 2
    assert [vectors for kernel, vectors in rows if kernel.startswith("gemv_q4")] == [256]


@pytest.mark.parametrize(
    ("kernel", "rows", "bits"),
    [
        *(("gemv_q4g32_q8g32_1x32__dotprod", 1, 4.5), ("gemv_cb2_q8g32_1x16__i8mm", 1, 2.25)),
        *(("gemv_q4g32_q8g32_1x32__sve", 1, 4.5), ("gemv_bf16_f32_1x32__sve", 1, 16)),
        *topics.thorough(
            *(("gemm_q4g32_q8g32_8x4__dotprod", 2, 4.5), ("gemv_q8g32_q8g32_1x16__i8mm", 1, 8.5)),
            *(("gemv_q4_k_q8g32_1x32__dotprod", 1, 4.5), ("gemm_q4g32_q8g32_12xv__sve", 96, 4.5)),
        ),
    ],
)
def test_every_line_of_the_weights_is_asked_for_ahead(ready, kernel, rows, bits) -> None:
    """Once, in five instructions at most, and none of them unless a distance is set."""
    program = bench.BUILD / "one_kernel"
    plugin, places = (
        bench.build_plugin(bench.BUILD),
        bench.model.Code(program).level(kernel.rpartition("__")[2]),
    )

    def instructions(ahead: int) -> int:
        call = (program, kernel, rows, bench.COLS, ahead)
        return bench.model.run(plugin, bench.CPU, *call)[1].within(places)

    lines = 32 * bench.COLS * bits / 8 / 64
    assert lines <= instructions(4096) - instructions(0) < 5 * lines


@pytest.mark.thorough
def test_the_table_has_a_line_for_a_kernel(ready) -> None:
    run = bench_arm("--kernel", KERNEL, "--rows", "1")
    assert run.returncode == 0, run.stderr
    line = rf"^\| {KERNEL} \| 1 \| \d\.\d\d \|( \d+\.\d \|){{6}}$"
    assert re.search(line, run.stdout, re.MULTILINE)


def test_an_unknown_kernel_is_an_error(ready) -> None:
    run = bench_arm("--kernel", "no_such_kernel", "--rows", "1")
    assert run.returncode == 2
    assert "no_such_kernel" in run.stdout


@pytest.mark.thorough
def test_attention_is_counted_and_modelled_at_three_contexts(ready) -> None:
    run = bench_arm("--kernel", "attention_int8", "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    rows = [row for row in json.loads(run.stdout)["operations"] if row["level"] == "dotprod"]
    assert [row["size"] for row in rows] == [128, 2048, 8192]
    for row in rows:
        sdots = 2 * row["size"] * 4 * 64 * 2 / 16  # two halves of a code, of keys and of values
        assert sdots < row["instructions"] < 8 * sdots
        assert sdots / 2 < row["cycles"]["N1"] < 8 * sdots
    assert rows[2]["cycles"]["N1"] > 3.9 * rows[1]["cycles"]["N1"]


@pytest.mark.thorough
def test_steps_of_a_model_are_counted_and_modelled(ready) -> None:
    run = bench_arm("--steps", "--prompt", "12", "--json")  # SVE takes nine rows and more
    assert run.returncode == 0, run.stdout + run.stderr
    steps = {step["level"]: step for step in json.loads(run.stdout)["steps"]}
    assert list(steps) == ["neon", "dotprod", "i8mm", "sve/256", "sve/128"]
    cores_of = {"dotprod": {"N1"}, "sve/256": {"V1/5", "V1/8"}, "sve/128": {"N2", "V2"}}
    for name, cores in cores_of.items():
        assert set(steps[name]["decode_cycles"]) == cores
        for kind in ("decode", "prefill"):
            for cycles in steps[name][f"{kind}_cycles"].values():  # of 4 or 5 a cycle at most
                assert steps[name][kind] / 8 < cycles < 2 * steps[name][kind]
    assert steps["sve/256"]["prefill"] < steps["i8mm"]["prefill"] < steps["dotprod"]["prefill"]
    # with the same kernels, found behind others in the table
    assert 1 <= steps["sve/128"]["prefill"] / steps["i8mm"]["prefill"] < 1.01
