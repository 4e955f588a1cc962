"""Makes llama3_rope_factors.json with torch, by the float32 operations of the public converter.

Run: python tests/golden/make_rope_factors.py (needs torch; the result is committed).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

BASE = {"low": 1.0, "high": 4.0, "context": 8192, "rope_theta": 500000.0}
CASES = {
    "Llama-3.1": BASE | {"head_dim": 128, "factor": 8.0},
    "Llama-3.2-1B": BASE | {"head_dim": 64, "factor": 32.0},
    "Llama-3.2-3B": BASE | {"head_dim": 128, "factor": 32.0},
    "tiny": BASE | {"head_dim": 16, "factor": 8.0, "rope_theta": 10000.0, "context": 64},
}


def factors(
    rope_theta: float, head_dim: int, factor: float, low: float, high: float, context: int
) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    result = []
    for frequency in 1.0 / rope_theta**exponents:
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            result.append(torch.tensor(1.0))
        elif wavelength > context / low:
            result.append(torch.tensor(factor))
        else:
            smooth = (context / wavelength - low) / (high - low)
            result.append(1 / ((1 - smooth) / factor + smooth))
    return torch.stack(result)


if __name__ == "__main__":
    cases = [
        {
            "name": name,
            "settings": settings,
            "float32": factors(**settings).numpy().astype("<f4").tobytes().hex(),
        }
        for name, settings in CASES.items()
    ]
    path = Path(__file__).with_name("llama3_rope_factors.json")
    path.write_text(json.dumps(cases, indent=1) + "\n")
