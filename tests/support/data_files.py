"""Models, vocabularies, templates and texts of others: shipped, or beside the checkout."""

from __future__ import annotations

from pathlib import Path

import topics

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "tests" / "data", ROOT.parent / "shared" / "data")


def find(name: str) -> Path | None:
    """A file or folder, such as ``models/stories260K-hf``, if it is here."""
    return next((folder / name for folder in FOLDERS if (folder / name).exists()), None)


def data(name: str) -> Path:
    """A file or folder; where it is not, the test is left out."""
    found = find(name)
    if found is None:
        topics.skip("data", f"../shared/data/{name} does not exist")
    return found


def every(pattern: str) -> dict[str, Path]:
    """All that is here and has a name of this form, such as ``templates/*.jinja``, by file name."""
    paths = [path for folder in FOLDERS for path in sorted(folder.glob(pattern))]
    return {path.name: path for path in reversed(paths)}
