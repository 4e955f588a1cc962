"""Whether committed goldens are what the implementation that they are from computes now."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import topics


def check_goldens(script: Path) -> None:
    """Run a script that makes goldens with --check; without its packages the test is skipped."""
    needed = ["torch", "transformers"]
    needed += ["sentence_transformers"] if "colbert" in script.name else []
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        topics.skip(
            "reference", f"{' and '.join(missing)} not installed: the goldens are taken as they are"
        )
    command = [sys.executable, str(script), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
