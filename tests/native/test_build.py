"""Warnings stop CI, and no build of a newcomer, whose compiler may warn of other things."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import topics

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")


@pytest.mark.parametrize(("options", "stops"), [([], False), (["-DLANEWISE_WERROR=ON"], True)])
def test_warnings_are_errors_only_where_they_are_asked_to_be(tmp_path, options, stops):
    if CMAKE is None or shutil.which("gcc") is None:
        topics.skip("native", "no cmake or gcc to configure the library with")
    commands = "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"
    command = [CMAKE, "-S", ROOT / "native", "-B", tmp_path, commands, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled = json.loads((tmp_path / "compile_commands.json").read_text())
    assert len(compiled) > 20
    assert {"-Werror" in one["command"].split() for one in compiled} == {stops}


@pytest.mark.parametrize("system", ["Darwin", "FreeBSD"])
def test_other_systems_are_refused_in_one_line(tmp_path, system):
    if CMAKE is None or shutil.which("gcc") is None:
        topics.skip("native", "no cmake or gcc to configure the library with")
    command = [CMAKE, "-S", ROOT / "native", "-B", tmp_path, f"-DCMAKE_SYSTEM_NAME={system}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"Lanewise runs on Linux, not on {system}: on a Mac" in " ".join(done.stderr.split())


@pytest.mark.parametrize(("ci", "stops"), [("", False), ("true", True)])
def test_ci_asks_for_errors_and_installing_does_not(ci, stops):
    make = ["make", "--dry-run", "--always-make", "--directory", ROOT, "build/sanitize/.built"]
    environment = {**os.environ, "CI": ci}
    done = subprocess.run(make, env=environment, capture_output=True, text=True, check=True)
    assert ("LANEWISE_WERROR=ON" in done.stdout) == stops
    code = "import native_build; print(native_build.STRICT)"
    python = [sys.executable, "-c", code]
    environment["PYTHONPATH"] = str(ROOT / "tests" / "support")
    done = subprocess.run(python, env=environment, capture_output=True, text=True, check=True)
    assert ("LANEWISE_WERROR=ON" in done.stdout) == stops
    assert "WERROR" not in (ROOT / "pyproject.toml").read_text()
