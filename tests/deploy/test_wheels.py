"""What is published: wheels are looked through before, and the same sources give the same bytes."""

import os
import platform
import re
import shutil
import subprocess
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import topics
from deploy import wheel, wheel_checks
from deploy.sbom import version_of

ROOT = Path(__file__).resolve().parents[2]
VERSION = version_of(ROOT / "service" / "lanewise")
ARCHITECTURE = platform.machine()
NAME = f"lanewise-{VERSION}-py3-none-{wheel.platform_tag(ARCHITECTURE)}.whl"


def metadata(**changes: str | list[str]) -> bytes:
    fields = {
        "Metadata-Version": "2.4",
        "Name": "lanewise",
        "Version": VERSION,
        "Description-Content-Type": "text/markdown",
        "Provides-Extra": ["otel"],
        "Requires-Dist": ["numpy>=1", 'sdk>=1; extra == "otel"'],
    }
    message = Message()
    for name, value in (fields | changes).items():
        for one in [value] if isinstance(value, str) else value:
            message[name] = one
    message.set_payload("# Lanewise\n")
    return message.as_bytes()


def library(folder: Path, *options: str, source: str = "int lw_one(void) { return 1; }") -> Path:
    """A shared library with what the options do to it."""
    if shutil.which("gcc") is None:
        topics.skip("native", "no gcc to make a library with")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.c").write_text(source)
    path = folder / "liblanewise.so"
    command = ["gcc", "-shared", "-fPIC", "-o", path, folder / "one.c", *options]
    subprocess.run(command, check=True)
    return path


def test_a_library_that_is_right_has_no_problems(tmp_path):
    assert wheel_checks.library_problems(library(tmp_path, "-Wl,-z,relro")) == []


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("-Wl,--disable-new-dtags,-rpath,/opt", "has RPATH"),
        ("-Wl,--enable-new-dtags,-rpath,/opt", "has RUNPATH"),
        ("-Wl,-z,execstack", "asks for an executable stack"),
        ("-Wl,-z,norelro", "has no read-only relocations"),
    ],
)
def test_what_is_wrong_with_a_library_is_found(tmp_path, option, problem):
    assert wheel_checks.library_problems(library(tmp_path, "-Wl,-z,relro", option)) == [problem]


def test_a_library_that_needs_one_of_somebody_else_is_found(tmp_path):
    other = library(tmp_path / "other").rename(tmp_path / "libother.so")
    linked = ("-Wl,--no-as-needed", "-Wl,-soname,liblanewise.so", str(other), "-Wl,-z,relro")
    [problem] = wheel_checks.library_problems(library(tmp_path, *linked))
    assert "libother.so" in problem


def test_a_library_for_smaller_pages_than_there_are_is_found(tmp_path):
    path = library(tmp_path, "-Wl,-z,max-page-size=4096", "-Wl,-z,common-page-size=4096")
    assert wheel_checks.page_problems(path, "x86_64") == []
    assert "65536 bytes" in wheel_checks.page_problems(path, "aarch64")[0]


def test_levels_whose_code_is_missing_are_named(tmp_path):
    path = library(tmp_path)
    assert wheel_checks.level_problems(path, ARCHITECTURE) == [
        f"has no code of level {level}" for level in wheel_checks.INSTRUCTIONS[ARCHITECTURE]
    ]


def test_every_level_but_the_scalar_one_has_an_instruction_to_look_for():
    text = (ROOT / "native" / "CMakeLists.txt").read_text()
    built = [set(line.split()) - {"scalar"} for line in re.findall(r"ISA_LEVELS (.*)\)", text)]
    assert built == [set(levels) for levels in wheel_checks.INSTRUCTIONS.values()]


def test_a_platform_tag_that_promises_too_much_is_found(tmp_path, monkeypatch):
    """Where the promise is glibc 2.5, and a symbol is from 2.17 or later on every architecture."""
    source = "#include <time.h>\nint lw_one(struct timespec* t) { return clock_gettime(0, t); }"
    path = library(tmp_path / "library", "-O2", source=source)
    archive = tmp_path / NAME
    with zipfile.ZipFile(archive, "w") as written:
        written.write(path, wheel_checks.LIBRARY)
        written.writestr(f"lanewise-{VERSION}.dist-info/RECORD", f"{wheel_checks.LIBRARY},,\n")
    assert wheel_checks.tag_problems(archive, ARCHITECTURE) == []
    monkeypatch.setattr(wheel, "GLIBC", 5)
    old = archive.rename(tmp_path / NAME.replace("manylinux_2_34", "manylinux_2_5"))
    [problem] = wheel_checks.tag_problems(old, ARCHITECTURE)
    assert "is not true" in problem
    assert "GLIBC_2." in problem


def test_metadata_that_an_index_refuses_is_found():
    assert wheel_checks.metadata_problems(metadata()) == []
    [wrong] = wheel_checks.metadata_problems(metadata(Version="1.2.x"))
    assert "version" in wrong
    [empty] = wheel_checks.metadata_problems(metadata(**{"Provides-Extra": ["otel", "ray"]}))
    assert empty == "the extra ray brings nothing"


def test_names_and_contents_that_should_be_otherwise_are_found(tmp_path):
    [problem] = wheel_checks.name_problems(tmp_path / NAME.replace("manylinux_2_34", "linux"))
    assert NAME in problem
    contained = [*wheel_checks.CONTAINED, "lanewise/cli.py"]
    assert wheel_checks.content_problems(contained) == []
    more = ["lanewise/demo/training/train.py", "lanewise/runtime/old.so"]
    assert wheel_checks.content_problems([*contained[1:], *more]) == [
        f"has no {wheel_checks.LIBRARY}",
        *(f"has {one}" for one in more),
    ]


def test_sources_without_a_checkout_are_refused_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    assert wheel.main(["--output", str(tmp_path / "dist"), ARCHITECTURE]) == 1
    assert capsys.readouterr().err.startswith(f"{tmp_path}: not a git checkout")
    assert list(tmp_path.iterdir()) == []


def test_the_same_sources_elsewhere_give_the_same_archive(tmp_path, monkeypatch):
    """All but the library: other folder, other permissions, other times, other environment."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        topics.skip("machine", "no git checkout to take the native sources from")
    found = []
    for name, hidden, time in (("one", 0o022, 10**9), ("another", 0o077, 10**9 + 7)):
        sources, output = tmp_path / name / "sources", tmp_path / name / "dist"
        wheel.copy_tracked(ROOT, sources)
        for path in sources.rglob("*"):
            path.chmod(path.stat().st_mode & ~hidden)
            os.utime(path, (time, time))
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(time))
        wheel.build(sources, ARCHITECTURE, output, "--config-settings=wheel.cmake=false")
        [built] = output.iterdir()
        found.append(built.read_bytes())
    assert found[0] == found[1]
