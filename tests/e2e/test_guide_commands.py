"""Every command and program of README and the guide that can be run here is run here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guide_text import blocks
from lanewise.guide import pages
from lanewise.loading.checkpoints.hub import bundled_model

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FILES = [README, *map(pages.path_of, pages.names())]
LONG = ("lanewise bench", "lanewise doctor")  # seconds each, and tests of their own
CURL = '#!/bin/sh\nexec "{curl}" --fail-with-body --silent --show-error "$@"\n'


def runnable(kind: str) -> list:
    """The commands or programs of a kind, each once, by the page where it comes first."""
    found = {}
    for path in FILES:
        for block in blocks(path):
            # What README installs and serves is on the quickstart's page, with why it is not run.
            if (
                block.kind != kind
                or block.why
                or (path == README and "localhost" not in block.text)
            ):
                continue
            for text in block.commands() if kind == "console" else [block.text]:
                found.setdefault(text, path.stem)
    return [
        pytest.param(
            text,
            id=f"{page}-{text[:30]}",
            marks=[pytest.mark.thorough] if text.startswith(LONG) or "--itl" in text else [],
        )
        for text, page in found.items()
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the commands of the guide find where they run."""
    room = tmp_path_factory.mktemp("guide")
    (room / "model.gguf").symlink_to(bundled_model())
    (room / "text.txt").write_text("It was a dark night, and the wind blew. " * 60)
    return room


@pytest.fixture(scope="module")
def environment(folder):
    """Commands of this environment first, and a curl that fails where the server refuses."""
    programs = folder / "bin"
    programs.mkdir()
    found = subprocess.run(["which", "curl"], capture_output=True, text=True, check=True)
    (programs / "curl").write_text(CURL.format(curl=found.stdout.strip()))
    (programs / "curl").chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LANEWISE_")}
    return kept | {"PATH": ":".join(path), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}


def done(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a command prints, if it succeeds."""
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, f"{command[-1]}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.parametrize("command", runnable("console"))
def test_commands_work_as_they_stand(command, url, folder, environment):
    here = command.replace("http://localhost:8000", url).replace("localhost:8000", url[7:])
    said = done(["bash", "-euo", "pipefail", "-c", here], folder, environment)
    assert said or command.startswith("eval"), f"{command} says nothing"


@pytest.mark.parametrize("text", runnable("python"))
def test_programs_work_as_they_stand(text, url, folder, environment):
    here = text.replace("http://localhost:8000", url)
    assert done([sys.executable, "-c", here], folder, environment).strip()
