"""Warnings stop those who change the C sources, and nobody who only installs them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")


@pytest.mark.parametrize(("options", "stops"), [([], False), (["-DLANEWISE_WERROR=ON"], True)])
def test_warnings_are_errors_only_where_they_are_asked_to_be(tmp_path, options, stops):
    if CMAKE is None or shutil.which("gcc") is None:
        pytest.skip("no cmake or gcc to configure the library with")
    commands = "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"
    command = [CMAKE, "-S", ROOT / "native", "-B", tmp_path, commands, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled = json.loads((tmp_path / "compile_commands.json").read_text())
    assert len(compiled) > 20
    assert {"-Werror" in one["command"].split() for one in compiled} == {stops}


def test_installing_asks_for_no_errors_and_developing_does():
    recipes = (ROOT / "Makefile").read_text().split("\n\n")
    installing = [
        text for text in recipes if "--editable" in text and "LANEWISE_WERROR" not in text
    ]
    developing = [text for text in recipes if "LANEWISE_WERROR" in text or "$(STRICT)" in text]
    assert any("'.[dev]'" in text for text in developing)
    assert any("build/sanitize" in text for text in developing)
    assert any("--editable ." in text for text in installing)
    assert "WERROR" not in (ROOT / "pyproject.toml").read_text()
