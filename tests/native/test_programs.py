"""The C library's own test programs, built as the library is and run on this CPU."""

import re
from pathlib import Path

import pytest

from lanewise.native.library import definitions
from native_build import ROOT, check
from topics import THOROUGH

pytestmark = [pytest.mark.native, pytest.mark.slow]

GOLDEN = ROOT / "tests" / "golden" / "logits.txt"
ENCODINGS = ROOT / "tests" / "golden" / "encodings.txt"
PICTURES = ROOT / "tests" / "golden" / "pictures.txt"
CROWDS = ROOT / "tests" / "golden" / "crowds.txt"
HEADER = ROOT / "native" / "include" / "lanewise.h"


def test_every_kernel_equals_its_definition(programs: Path) -> None:
    output = check(programs / "test_kernels")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_activations_and_outliers_equal_their_definition(programs: Path) -> None:
    """Codes, scales, sums and outliers at all levels of this CPU, and outliers with all types."""
    output = check(programs / "test_activations")
    assert output.splitlines()[-1].endswith(" 0 failed")
    assert int(output.split()[-4]) >= 50


def test_attention_equals_its_definition(programs: Path) -> None:
    """Contexts over several splits, windows, head sizes and groups, at all levels of this CPU."""
    output = check(programs / "test_attention")
    assert output.splitlines()[-1].endswith(" 0 failed")
    assert int(output.split()[0]) >= 40


def test_index_scores_equal_their_definition(programs: Path) -> None:
    """Sums over heads and the largest product in a block, at all levels of this CPU."""
    output = check(programs / "test_index")
    assert output.splitlines()[-1].endswith(" 0 failed")
    assert int(output.split()[-4]) >= 240


def test_recurrences_equal_their_definition(programs: Path) -> None:
    """Convolutions, recurrences and gates of layers with a state, at all levels of this CPU."""
    output = check(programs / "test_recur")
    assert output.splitlines()[-1].endswith(" 0 failed")
    assert int(output.split()[-4]) >= 10


def test_states_are_their_sequences_own(programs: Path) -> None:
    """Wherever they are, whoever fails beside them; and what is refused of models with states."""
    output = check(programs / "test_states")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_guesses_leave_states_as_they_are_until_they_count(programs: Path) -> None:
    """All kinds, chunks, copies and steps that fail, with the bits of steps without guesses."""
    output = check(programs / "test_guesses")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_threads_that_share_a_context_change_nothing(programs: Path) -> None:
    """Contexts over four splits on 1 to 8 threads, with windows, beside short ones."""
    output = check(programs / "test_long_context")
    assert output.splitlines()[-1].endswith(" 0 failed")
    assert int(output.split()[-4]) >= 15


def test_levels_of_this_cpu_can_be_asked_for(programs: Path) -> None:
    output = check(programs / "test_cpu")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_threads_and_copies_are_where_they_are_told_to_be(programs: Path) -> None:
    output = check(programs / "test_numa")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_threads_of_all_kinds_do_not_disturb_each_other(programs: Path) -> None:
    """Also run by `make sanitize` and, where it can see a race, by `make sanitize-threads`."""
    output = check(programs / "test_threads")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_choices_between_kernels_are_checked(programs: Path) -> None:
    output = check(programs / "test_tune")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_logits_have_their_golden_hashes(programs: Path) -> None:
    """All levels of this CPU, 1 to 3 threads, batches of 1 to 9, chunks of 1, 7, 32 and whole."""
    output = check(programs / "test_golden", *(() if THOROUGH else ("--quick",)))
    assert output.splitlines()[:-1] == GOLDEN.read_text().splitlines()


@pytest.mark.thorough
def test_one_changed_weight_changes_every_hash(programs: Path) -> None:
    output = check(programs / "test_golden", "--quick", "--perturb")
    golden = GOLDEN.read_text().splitlines()
    for changed, line in zip(output.splitlines()[:-1], golden, strict=True):
        assert changed.rsplit(" ", 1)[0] == line.rsplit(" ", 1)[0]
        assert changed != line


def test_texts_have_their_golden_hashes_alone_and_together(programs: Path) -> None:
    """Pooled models at all levels of this CPU, with 1 to 3 threads; and what is refused."""
    *lines, last = check(programs / "test_encode").splitlines()
    assert last.endswith(" 0 failed")
    assert lines == ENCODINGS.read_text().splitlines()


def test_pictures_have_their_golden_hashes_in_any_slices(programs: Path) -> None:
    """Towers at all levels of this CPU, with 1 to 3 threads; and what is refused."""
    *lines, last = check(programs / "test_towers").splitlines()
    assert last.endswith(" 0 failed")
    assert lines == PICTURES.read_text().splitlines()


def test_a_text_among_512_has_its_own_bits_beside_a_chat(programs: Path) -> None:
    """All levels of this CPU; a model that writes text runs in another thread meanwhile."""
    *lines, last = check(programs / "test_crowd").splitlines()
    assert last.endswith(" 0 failed")
    assert lines == CROWDS.read_text().splitlines()


def test_packing_loses_nothing_and_damage_is_refused(programs: Path) -> None:
    output = check(programs / "test_packed")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_what_cannot_be_asked_of_a_function_is_refused_by_it(programs: Path) -> None:
    """NULL for each pointer, counts and sizes out of range, handles that are not ready."""
    called: set[str] = set()
    names = "test_arguments", "test_sessions", "test_blocks", "test_encode", "test_towers"
    for name in names:
        *calls, last = check(programs / name, "--calls").splitlines()
        assert last.endswith(" 0 failed")
        called.update(calls)
    declared = set(re.findall(r"^[\w *]+?\b(lw_\w+)\(", definitions(HEADER), re.MULTILINE))
    assert len(declared) > 40
    assert declared - called == set()


def test_refused_memory_is_said_and_nothing_is_lost(programs: Path) -> None:
    """Every allocation, mapping and thread of a whole scenario is refused once."""
    output = check(programs / "test_out_of_memory")
    assert output.splitlines()[-1].endswith(" 0 failed")


def test_a_mapped_file_that_shrinks_is_named_before_the_process_ends(programs: Path) -> None:
    output = check(programs / "test_mapped_fault")
    assert output.splitlines()[-1].endswith(" 0 failed")
