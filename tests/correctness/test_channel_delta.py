"""Delta rules whose channels decay apart, of sizes that nothing divides, against their definition.

Beside latent attention without positions or with gates, at every level, in chunks and batches.
"""

from __future__ import annotations

import numpy as np
import pytest

from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Rope,
)
from lanewise.loading.base.recurrences import ChannelDelta
from lanewise.runtime import usable_levels
from random_checkpoints import VOCAB, random_weights
from random_programs import N_TOKENS
from tests.correctness.test_programs import logits
from tests.golden.reference import program as definition

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

LATENT = {"n_kv_heads": 1, "latent_rank": 32, "value_dim": 32, "latent_eps": 1e-6}
STATES = {
    "kimi": ChannelDelta(3, 5, 48, 5, 48, decay_rank=21, gate_rank=7),
    "bounded": ChannelDelta(2, 3, 32, 1, 16, decay_floor=5.0),
    "one rank": ChannelDelta(8, 7, 80, 7, 112, gate_rank=130),
}
ATTENTIONS = {
    "kimi": Attention(3, head_dim=16, rope=None, rope_dim=6, query_rank=21, **LATENT),
    "bounded": Attention(5, head_dim=24, rope=0, rope_dim=10, head_gate=True, **LATENT),
    "one rank": Attention(4, head_dim=30, rope=None, rope_dim=10, output_gate=True, **LATENT),
}


@pytest.mark.parametrize("name", STATES)
def test_odd_shapes_are_what_their_definition_says(name: str) -> None:
    experts = Experts(n=5, n_used=2, size=32, router="sigmoid", shared_size=64, renormalize=True)
    layers = (
        Layer(None, Gated(37), state=STATES[name]),
        Layer(ATTENTIONS[name], experts),
        Layer(None, experts, state=STATES[name]),
    )
    config = ModelConfig("random", 96, VOCAB, 256, 1e-5, False, (Rope(1e4, 10),), layers)
    rng = np.random.default_rng(11)
    for _ in range(20):
        weights = random_weights(rng, config)
        tokens = [int(token) for token in rng.integers(0, VOCAB, N_TOKENS)]
        exact = {key: values.astype("f8") for key, values in weights.items()}
        wanted, margin = definition.logits_of(config, exact, tokens)
        if margin > 1e-5:
            break
    else:
        pytest.fail("every choice of experts is close")
    found = [
        logits(config, weights, isa, 1 + i % 3, chunk, i % 2 == 1, tokens)
        for isa in usable_levels()
        for i, chunk in enumerate((N_TOKENS, 1, 7))
    ]
    assert len({rows.tobytes() for rows in found}) == 1
    assert np.abs(found[0] - wanted).max() / np.abs(wanted).max() < 2e-5
