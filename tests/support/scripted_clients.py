"""A server whose model says what a test tells it, as clients of others meet it."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import SERVER_PYTHON, free_port, running

HERE = Path(__file__).parent
NAME = "my-model"
CONTEXT = 131072


@dataclass(frozen=True)
class Scripted:
    """Where the server is, and the folder by which it is told what to say."""

    url: str
    folder: Path
    context: int

    def says(self, *rules: tuple[str, dict[str, Any]]) -> None:
        """From now on: where these words stand last in a prompt, this answer."""
        new = self.folder / "new.json"
        new.write_text(json.dumps(rules))
        new.replace(self.folder / "script.json")

    @property
    def exchanges(self) -> list[dict[str, Any]]:
        """All requests so far and their answers."""
        path = self.folder / "exchanges.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def refused(self) -> str:
        """Tokens that a grammar did not let the model say."""
        path = self.folder / "refused.txt"
        return path.read_text() if path.exists() else ""


def write_model(folder: Path, template: Path, context: int = CONTEXT) -> Path:
    """A model with this chat template; returns its folder."""
    command = [SERVER_PYTHON, HERE / "scripted_models.py", folder, template, str(context)]
    subprocess.run(list(map(str, command)), check=True, timeout=120)
    return folder


@contextmanager
def scripted_server(
    folder: Path, model: Path, *arguments: str, context: int = CONTEXT
) -> Iterator[Scripted]:
    """One that serves ``model`` under the name of the guide's page."""
    folder.mkdir()
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [SERVER_PYTHON, HERE / "scripted_serve.py", folder, model, "--port", port]
    command += ["--served-model-name", NAME, "--threads", "1", "--max-model-len", context]
    with running(list(map(str, [*command, *arguments])), f"{url}/health/ready"):
        yield Scripted(url, folder, context)
