"""Makes colberts.json with sentence-transformers on torch: scores of models that compare tokens.

    python make_colberts.py [--check]

Of each case of tests/support/tiny_colbert.py how many vectors queries and documents have, the sum
of each text's vectors, and the scores of all pairs. With --check what is committed must be what
comes out now.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from sentence_transformers import MultiVectorEncoder

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from colbert_texts import DOCUMENTS, QUERIES  # noqa: E402

from tiny_colbert import CASES, write_colbert  # noqa: E402

GOLDEN = HERE / "colberts.json"
TOLERANCE = 1e-5


def case(name: str) -> dict[str, object]:
    """Return what sentence-transformers makes of the texts."""
    with tempfile.TemporaryDirectory() as folder:
        model = MultiVectorEncoder(str(write_colbert(Path(folder), name)), device="cpu")
        queries = [np.asarray(model.encode_query(text)) for text in QUERIES]
        documents = [np.asarray(model.encode_document(text)) for text in DOCUMENTS]
        scores = [
            [float(model.similarity([query], [document])[0][0]) for document in documents]
            for query in queries
        ]
    return {
        "queries": [len(query) for query in queries],
        "documents": [len(document) for document in documents],
        "sums": [
            [round(float(value), 6) for value in rows.sum(axis=0)] for rows in queries + documents
        ],
        "scores": [[round(score, 6) for score in row] for row in scores],
    }


if __name__ == "__main__":
    now = {name: case(name) for name in CASES}
    if "--check" in sys.argv[1:]:
        committed = json.loads(GOLDEN.read_text())
        for name, one in now.items():
            for key in ("sums", "scores"):
                if np.abs(np.array(one.pop(key)) - committed[name].pop(key)).max() > TOLERANCE:
                    raise SystemExit(f"{name}: {key} differ")
        if now != committed:
            raise SystemExit("other numbers of vectors")
        raise SystemExit(0)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(one)}" for name, one in now.items())
    GOLDEN.write_text("{\n" + lines + "\n}\n")
