"""Every Arm kernel equals the definition to the bit and uses only what its level has."""

import re
import signal
import subprocess

import pytest
from levels import EACH_LEVEL, LEVELS, TIMEOUT_S, Level, missing, run

import topics

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]

ALL_ISAS = {"scalar", "neon", "dotprod", "i8mm", "sve"}


def at(*levels: Level):
    """Parameters of a test."""
    return pytest.mark.parametrize("level", levels, ids=str)


def succeeded(done) -> str:
    """What the program printed."""
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


LONGEST = LEVELS[
    -1
]  # vectors of other lengths than 256 bits: here the longest, in `make test-all` all
OTHERS = [level for level in LEVELS[:-1] if level not in EACH_LEVEL]


@at(*EACH_LEVEL, LONGEST, *topics.thorough(*OTHERS))
def test_kernels_equal_the_definition(emulated, level: Level) -> None:
    output = succeeded(emulated(level, "test_kernels", "--quick"))
    ran = set(re.findall(r"^ok .*__(\w+) ", output, re.MULTILINE))
    skipped = set(re.findall(r"^skip .*__(\w+) ", output, re.MULTILINE))
    assert (ran, skipped) == (set(level.isas), ALL_ISAS - set(level.isas))


@at(*LEVELS)
def test_the_best_level_is_chosen(emulated, level: Level) -> None:
    """The last one; but prompts take SVE's tiles only where its vectors are longer than I8MM's."""
    output = succeeded(emulated(level, "test_cpu"))
    best, prompts, features = output.splitlines()[:3]
    length = re.search(r"sve(\d+)$", level.name)
    tiles = level.isas[:-1] if level.name.endswith("sve128") else level.isas
    assert best == f"best {level.isas[-1]}"
    assert prompts.endswith(f"__{tiles[-1]}")
    assert features.split()[1:] == [*level.isas, *([f"vl{length[1]}"] if length else [])]


@pytest.mark.thorough
@at(*(level for level in LEVELS if level.name == "v1-no-sve"))
def test_kernels_equal_the_definition_for_many_shapes(emulated, level: Level) -> None:
    succeeded(emulated(level, "test_kernels"))


@at(LEVELS[0])  # one set of lanes serves every Arm level
def test_attention_equals_its_definition(emulated, level: Level) -> None:
    succeeded(emulated(level, "test_attention", "12"))


@at(LEVELS[0])  # likewise
def test_index_scores_equal_their_definition(emulated, level: Level) -> None:
    succeeded(emulated(level, "test_index", "12"))


@at(LEVELS[0], LEVELS[3])  # without and with every layout
def test_activations_and_outliers_equal_their_definition(emulated, level: Level) -> None:
    succeeded(emulated(level, "test_activations"))


@at(LEVELS[0])  # likewise
def test_recurrences_equal_their_definition(emulated, level: Level) -> None:
    succeeded(emulated(level, "test_recur"))


def test_a_leaked_instruction_is_a_failure(tmp_path, cross_compiler) -> None:
    source, program = tmp_path / "leak.c", tmp_path / "leak"
    source.write_text('int main(void) { __asm__("sdot v0.4s, v1.16b, v2.16b"); }')
    flags = ["-static", "-march=armv8.2-a+dotprod"]
    subprocess.run([cross_compiler, *flags, source, "-o", program], check=True)
    for level in LEVELS:
        if reason := missing(level):
            topics.skip("arm", reason)
        status = run(program, level).returncode
        assert status == (0 if "dotprod" in level.isas else -signal.SIGILL)
