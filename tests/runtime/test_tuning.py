"""Choices between kernels: measured once, kept per CPU and library, and never an error."""

import json
import logging

import pytest

from lanewise.runtime import NativeError, tuning
from lanewise.runtime.tuning import NEVER, Choice

SVE, I8MM = "gemm_q4__sve", "gemm_q4__i8mm"


@pytest.fixture
def level(fake, monkeypatch, tmp_path):
    """A level with one choice, of which a measurement says 24; the library is a file."""
    fake.standing, fake.measured, fake.measurements = 9, 24, 0
    library = tmp_path / "liblanewise.so"
    library.write_bytes(b"code")
    monkeypatch.setattr(tuning, "library_path", lambda: library)

    def fill(out, count, rows):
        out[0].symbol, out[0].rival = SVE.encode(), I8MM.encode()
        out[0].least_rows, out[0].min_rows = 9, rows
        count[0] = 1
        return 0

    def tune(isa, out, capacity, count):
        fake.measurements += 1
        return fill(out, count, fake.measured)

    def choose(structs, n):
        for i in range(n):
            if fake.ffi.string(structs[i].symbol).decode() != SVE or structs[i].min_rows < 9:
                return fake._answer("choose")
            fake.standing = structs[i].min_rows
        return 0

    fake.failure = ("choose", "no such pair")
    fake.lw_choices = lambda isa, out, capacity, count: fill(out, count, fake.standing)
    fake.lw_tune = tune
    fake.lw_choose = choose
    return fake


def prepare(folder, cpu="Arm Neoverse V1", enabled=True):
    return tuning.prepare("sve", cpu, enabled=enabled, folder=folder)


def test_a_measurement_is_used_kept_and_read(level, tmp_path):
    folder = tmp_path / "new" / "cache"
    assert prepare(folder).choices == [Choice(SVE, I8MM, 24)]
    assert level.standing == 24
    level.standing, level.measured = 9, 99
    again = prepare(folder)
    assert again.choices == [Choice(SVE, I8MM, 24)]
    assert again.source == f"measured before: {folder}/autotune-arm-neoverse-v1-sve.json"
    assert (level.measurements, level.standing) == (1, 24)
    assert [path.name for path in folder.iterdir()] == ["autotune-arm-neoverse-v1-sve.json"]


def test_never_is_kept_too(level, tmp_path):
    level.measured = NEVER
    prepare(tmp_path)
    level.standing = 9
    assert prepare(tmp_path).choices == [Choice(SVE, I8MM, NEVER)]
    assert level.measurements == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "\x00\xff",
        '{"format": 1}',
        lambda kept: kept | {"format": 2},
        lambda kept: kept | {"cpu": "Arm Neoverse N2"},
        lambda kept: kept | {"features": ["neon"]},
        lambda kept: kept | {"library": [1, 2]},
        lambda kept: kept | {"choices": None},
        lambda kept: kept | {"choices": [[SVE, I8MM]]},
        lambda kept: kept | {"choices": [[SVE, I8MM, "24"]]},
        lambda kept: kept | {"choices": [[SVE, I8MM, 2**40]]},
        lambda kept: kept | {"choices": [[SVE, I8MM, 8]]},
        lambda kept: kept | {"choices": [["gemm_q4__amx", I8MM, 24]]},
    ],
)
def test_a_file_of_something_else_is_measured_anew_and_replaced(level, tmp_path, caplog, text):
    prepare(tmp_path)
    (path,) = tmp_path.glob("autotune-*.json")
    good = json.loads(path.read_text())
    path.write_text(text if isinstance(text, str) else json.dumps(text(good)), "latin-1")
    level.standing = 9
    caplog.clear()
    with caplog.at_level(logging.INFO, "lanewise"):
        assert prepare(tmp_path).source == "measured now"
    (line,) = caplog.messages
    assert line.startswith(f"autotune: measuring anew: {path}: ")
    assert (level.measurements, level.standing) == (2, 24)
    assert json.loads(path.read_text()) == good


def test_another_build_of_the_library_is_measured_anew(level, tmp_path):
    prepare(tmp_path)
    tuning.library_path().write_bytes(b"other code")
    assert prepare(tmp_path).source == "measured now"


def test_a_folder_that_cannot_be_written_is_no_error(level, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.INFO, "lanewise"):
        assert prepare(tmp_path / "file" / "cache").choices == [Choice(SVE, I8MM, 24)]
    assert "autotune: the result is not kept" in caplog.text
    assert level.standing == 24


def test_off_leaves_the_table(level, tmp_path):
    found = prepare(tmp_path, enabled=False)
    assert (found.choices, found.source) == ([Choice(SVE, I8MM, 9)], "off")
    assert (level.measurements, level.standing) == (0, 9)
    assert not list(tmp_path.glob("autotune*"))


def test_where_nothing_is_open_nothing_is_measured_or_kept(level, tmp_path):
    def none(isa, out, capacity, count):
        count[0] = 0
        return 0

    level.lw_choices = none
    assert prepare(tmp_path).choices == []
    assert level.measurements == 0
    assert not list(tmp_path.glob("autotune*"))


def test_what_the_library_refuses_is_an_error(level):
    with pytest.raises(NativeError, match="no such pair"):
        tuning.choose([Choice("gemm_q4__amx", I8MM, 24)])


@pytest.mark.parametrize(
    ("home", "caches", "folder"),
    [
        ("/user", None, "/user/.cache/lanewise"),
        ("/user", "relative", "/user/.cache/lanewise"),
        ("/user", "/var/cache", "/var/cache/lanewise"),
        ("", None, "/.cache/lanewise"),
    ],
)
def test_files_are_kept_with_other_caches(monkeypatch, home, caches, folder):
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if caches is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert str(tuning.cache_folder()) == folder


@pytest.mark.native
def test_every_choice_of_this_cpu_can_be_made():
    """The real library; on x86-64 no two kernels are close."""
    standing = tuning.choices()
    tuning.choose(standing)
    assert tuning.choices() == standing
    assert [choice.symbol for choice in tuning.measure()] == [choice.symbol for choice in standing]
