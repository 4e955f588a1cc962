"""A program that says which GGUF files are no models, by the first bytes of each.

Reads a JSON list of paths, and writes an object with the kinds of those that are none.
"""

import json
import sys
from pathlib import Path

from lanewise.loading.checkpoints.gguf_checkpoint import other_kind
from lanewise.loading.files.gguf import texts_at

START_BYTES = 1 << 16  # writers put the kind first


def kind_of(path: Path) -> str | None:
    """What a file is that is no model; None for models, and for what cannot be read."""
    try:
        with path.open("rb") as file:
            return other_kind(texts_at(file.read(START_BYTES)))
    except OSError:
        return None


def main() -> None:
    """Read, look, write."""
    kinds = {name: kind_of(Path(name)) for name in json.load(sys.stdin)}
    print(json.dumps({name: kind for name, kind in kinds.items() if kind is not None}))


if __name__ == "__main__":
    main()
