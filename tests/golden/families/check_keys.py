"""Whether transformers computes the committed logits from configs with fields that change nothing.

    python check_keys.py --check

The fields are those of tests/support/published_keys.py.
"""

from __future__ import annotations

import numpy as np
from make_families import CASES, HERE, POSITIONS, class_of, forward, load, written

from made_by_transformers import TOLERANCE
from published_keys import OF_DECODERS, OF_TOOLS


def main() -> None:
    """Compute each case and compare it."""
    committed = np.load(HERE / "logits.npz")
    wrong = []
    for name, keys in OF_DECODERS.items():
        config = CASES[name] | keys | OF_TOOLS
        model = load(name, written(config))
        assert type(model) is class_of(config)
        found = forward(model, committed[f"{name}/prompt"].tolist())[list(POSITIONS)]
        expected = committed[f"{name}/logits"]
        difference = np.abs(found - expected).max() / np.abs(expected).max()
        if difference > TOLERANCE:
            wrong.append(f"{name}: logits differ by {difference:.2e} with {', '.join(keys)}")
    raise SystemExit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
