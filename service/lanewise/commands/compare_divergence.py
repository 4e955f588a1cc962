"""How far distributions of the next token lie from those of a reference."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def kl_divergences(expected: Floats, found: Floats) -> list[float]:
    """The divergence of each row's distribution from the expected one, in nats, in float64."""
    out = []
    for p_row, q_row in zip(expected, found, strict=True):  # one at a time: rows can be wide
        log_p, log_q = _log_softmax(p_row), _log_softmax(q_row)
        out.append(float((np.exp(log_p) * (log_p - log_q)).sum()))
    return out


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    values = logits.astype(np.float64)
    values -= values.max()
    out: NDArray[np.float64] = values - np.log(np.exp(values).sum())
    return out
