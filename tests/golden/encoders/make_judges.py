"""Makes judges.json with transformers on torch: tokens and scores of a tiny Qwen3-Reranker.

    python make_judges.py [--check]

As its model card does it: the tokens of prefix, pair and suffix, then of the last logits the
probability of yes against no. With --check what is committed must be what comes out now.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from tiny_judge import INSTRUCTION, PREFIX, SUFFIX, body_of, byte_pairs, write_judge  # noqa: E402

GOLDEN = HERE / "judges.json"
TOLERANCE = 1e-5
QUERIES = ("Where is the water?", "the river rises", "  two spaces ", "Wörter\n\n", "9 + 3 = ?")
DOCUMENTS = ("The river rises slowly.", "nobody counts", " it's {query} \n", "", "京都 🙂 é")
ASKED = (INSTRUCTION, "Find the houses: all of them.")


def scores() -> list[dict[str, object]]:
    """Return a record for each query with each document, the instructions in turns."""
    library = byte_pairs()
    prefix, suffix, yes, no = (library.encode(text).ids for text in (PREFIX, SUFFIX, "yes", "no"))
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_pretrained(
            write_judge(Path(folder)), dtype=torch.float32, attn_implementation="eager"
        ).eval()
    found: list[dict[str, object]] = []
    for query in QUERIES:
        for document in DOCUMENTS:
            instruction = ASKED[len(found) % 2]
            text = body_of(query, document, instruction)
            ids = prefix + library.encode(text).ids + suffix
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            score = torch.log_softmax(torch.stack([logits[no[0]], logits[yes[0]]]), 0)[1].exp()
            about = {"query": query, "document": document, "instruction": instruction}
            found.append(about | {"ids": ids, "score": round(float(score), 7)})
    return found


if __name__ == "__main__":
    now = scores()
    if "--check" in sys.argv[1:]:
        committed = json.loads(GOLDEN.read_text())
        for one, other in zip(now, committed, strict=True):
            if abs(one.pop("score") - other.pop("score")) > TOLERANCE or one != other:
                raise SystemExit(f"{one['query']!r}, {one['document']!r}: differs")
        raise SystemExit(0)
    lines = ",\n".join(f" {json.dumps(one)}" for one in now)
    GOLDEN.write_text(f"[\n{lines}\n]\n")
