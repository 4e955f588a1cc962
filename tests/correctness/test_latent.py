"""Latent attention at its published sizes: long contexts, and what the cache holds."""

import numpy as np
import pytest

from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.native.library import NativeError
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session
from random_checkpoints import VOCAB, checkpoint, random_weights
from tests.golden.reference import program as definition
from topics import cases

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

RANK, TURNED = 512, 64
LONG = cases(1500, 4096)
SHOWN = tuple(
    sorted((0, 31, 1023, 1024, LONG // 2, LONG - 1))
)  # positions whose logits are compared


def config_of(n_layers: int = 2, n_heads: int = 3, query_rank: int = 96) -> ModelConfig:
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=1,
        head_dim=128 + TURNED,
        rope=0,
        latent_rank=RANK,
        rope_dim=TURNED,
        value_dim=128,
        query_rank=query_rank,
        latent_eps=1e-6,
    )
    layers = (Layer(attention, Gated(96)),) * n_layers
    return ModelConfig("random", 64, VOCAB, 2 * LONG, 1e-5, False, (Rope(1e4, TURNED),), layers)


def logits(
    model: Model, tokens: list[int], chunk: int, threads: int, kv_type: str, rows=SHOWN
) -> np.ndarray:
    """Logits at some positions, the text in chunks."""
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    found = []
    with Session(
        model,
        threads=threads,
        blocks=blocks,
        max_batch_tokens=chunk,
        max_batch_logits=len(rows),
        kv_type=kv_type,
    ) as session:
        for at in range(0, len(tokens), chunk):
            now = tokens[at : at + chunk]
            wanted = [row - at for row in rows if at <= row < at + len(now)]
            batch = Batch(now, [0, len(now)], [at], [list(range(blocks))], wanted)
            found.append(session.step(batch)[: len(wanted)].copy())
    return np.concatenate(found)


def test_absorbed_heads_are_plain_ones_at_a_long_context():
    """Of float64, which absorbs nothing: F32 caches to 1e-5, F16 ones to 1e-3, one set of bits.

    Weights are random, so heads choose sharply: codes lose more than in models.
    """
    config, rng = config_of(), np.random.default_rng(11)
    weights = random_weights(rng, config)
    tokens = [int(token) for token in rng.integers(0, VOCAB, LONG)]
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted = definition.logits_of(config, exact, tokens)[0][list(SHOWN)]
    size = np.abs(wanted).max()
    with Model.load(checkpoint(config, weights)) as model:
        for kv_type, tolerance in (("f32", 1e-5), ("f16", 1e-3), ("int8", 0.04), ("q4", 0.4)):
            found = logits(model, tokens, 512, 1, kv_type)
            assert np.abs(found - wanted).max() / size < tolerance, kv_type
            # A thread alone has whole contexts, three of them have splits.
            if kv_type.startswith("f"):
                assert logits(model, tokens, 1000, 3, kv_type).tobytes() == found.tobytes()
            # Heads of the last token are jobs of their own, and so are its splits.
            assert logits(model, tokens, LONG - 1, 5, kv_type).tobytes() == found.tobytes()


@pytest.mark.parametrize(
    ("kv_type", "bytes_of_a_row"),
    [
        ("f16", 2 * (RANK + TURNED)),
        ("f32", 4 * (RANK + TURNED)),
        ("int8", RANK + TURNED + 8),
        ("q4", RANK // 2 + TURNED + 8),
    ],
)
def test_the_cache_holds_576_values_of_a_token_and_layer(kv_type, bytes_of_a_row):
    config = config_of(n_layers=5, n_heads=128)
    with Model.load(checkpoint(config, random_weights(np.random.default_rng(1), config))) as model:
        block = model.kv_layout(kv_type, groups_by_window=True).block_bytes
    assert block == 5 * BLOCK_TOKENS * bytes_of_a_row


def test_keys_and_values_of_different_bits_are_refused():
    config = config_of(n_layers=1)
    one = {"threads": 1, "blocks": 1, "max_batch_tokens": 1, "max_batch_logits": 1}
    message = r"kv_type is 301 .k8v4., must be I8 .24, int8.*in layer 0 one latent row is key and"
    with Model.load(checkpoint(config, random_weights(np.random.default_rng(1), config))) as model:
        with pytest.raises(NativeError, match=message):
            Session(model, kv_type="k8v4", **one)
        with pytest.raises(NativeError, match=message):
            model.kv_layout("k8v4")
