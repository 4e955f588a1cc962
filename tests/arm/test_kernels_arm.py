"""Every Arm kernel equals the definition to the bit and uses only what its level has."""

import re
import signal
import subprocess

import pytest
from levels import LEVELS, Level, missing, run

pytestmark = [pytest.mark.arm, pytest.mark.slow]

ALL_ISAS = {"scalar", "neon", "dotprod", "i8mm", "sve"}


def run_here(program, level: Level, *arguments: str):
    if reason := missing(level):
        pytest.skip(reason)
    return run(program, level, *arguments)


@pytest.fixture(scope="session")
def test_kernels(cross_build):
    return cross_build("test_kernels")


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_kernels_equal_the_definition(test_kernels, level: Level) -> None:
    done = run_here(test_kernels, level, "--quick")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    ran = set(re.findall(r"^ok .*__(\w+) ", done.stdout, re.MULTILINE))
    skipped = set(re.findall(r"^skip .*__(\w+) ", done.stdout, re.MULTILINE))
    assert (ran, skipped) == (set(level.isas), ALL_ISAS - set(level.isas))


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_the_best_level_is_chosen(cross_build, level: Level) -> None:
    """The last one, but SVE only where its vectors are longer than those of I8MM."""
    done = run_here(cross_build("test_cpu"), level)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    usable = level.isas[:-1] if level.name.endswith("sve128") else level.isas
    best, features = done.stdout.splitlines()[:2]
    length = re.search(r"sve(\d+)$", level.name)
    assert best == f"best {usable[-1]}"
    assert features.split()[1:] == [*level.isas, *([f"vl{length[1]}"] if length else [])]


def test_kernels_equal_the_definition_for_many_shapes(test_kernels) -> None:
    level = next(level for level in LEVELS if level.name == "v1-no-sve")
    done = run_here(test_kernels, level)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("level", LEVELS[:1], ids=str)  # one set of lanes serves every Arm level
def test_attention_equals_its_definition(cross_build, level: Level) -> None:
    done = run_here(cross_build("test_attention"), level, "12")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("level", [LEVELS[0], LEVELS[3]], ids=str)  # without and with every layout
def test_activations_and_outliers_equal_their_definition(cross_build, level: Level) -> None:
    done = run_here(cross_build("test_activations"), level)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


def test_a_leaked_instruction_is_a_failure(tmp_path, cross_compiler) -> None:
    source, program = tmp_path / "leak.c", tmp_path / "leak"
    source.write_text('int main(void) { __asm__("sdot v0.4s, v1.16b, v2.16b"); }')
    flags = ["-static", "-march=armv8.2-a+dotprod"]
    subprocess.run([cross_compiler, *flags, source, "-o", program], check=True)
    for level in LEVELS:
        status = run_here(program, level).returncode
        assert status == (0 if "dotprod" in level.isas else -signal.SIGILL)
