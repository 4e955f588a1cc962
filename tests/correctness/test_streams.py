"""Random programs with several residual streams and cut gates against their definition."""

from dataclasses import replace

import numpy as np
import pytest

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.loading.programs.native_program import check_program
from lanewise.runtime import usable_levels
from random_checkpoints import VOCAB, random_weights
from random_programs import N_TOKENS
from tests.correctness.test_programs import logits
from tests.golden.reference import program as definition
from topics import cases


def stream_program(rng: np.random.Generator) -> ModelConfig:
    head_dim, layers = 2 * int(rng.integers(4, 20)), []
    for number in range(int(rng.integers(1, 4))):
        attention = Attention(
            n_heads=2 * int(rng.integers(1, 3)),
            n_kv_heads=2,
            head_dim=head_dim,
            rope=0,
            window=int(rng.integers(3, 40)) if rng.random() < 0.5 else None,
            qk_norm="head",
            value_norm=True,
            score_scale=1.0,
        )
        cutoff = float(np.float32(rng.choice([0.0, 0.5, 1.25])))
        size = int(rng.integers(1, 300))
        ffn = Gated(size, activation=str(rng.choice(["gelu_tanh", "silu"])), cutoff=cutoff)
        layers.append(Layer(attention, ffn, result_norms=True))
        if number and attention.window == layers[0].attention.window and rng.random() < 0.5:
            shared = replace(attention, kv_layer=0, value_norm=False)
            layers[-1] = replace(layers[-1], attention=shared)
    return ModelConfig(
        architecture="random",
        hidden_size=32 * int(rng.integers(1, 6)),
        vocab_size=VOCAB,
        context_length=256,
        rms_norm_eps=1e-5,
        tied_embeddings=bool(rng.random() < 0.5),
        ropes=(Rope(1e4, head_dim),),
        layers=tuple(layers),
        embedding_scale=float(rng.choice([1.0, 8.0])),
        per_layer_size=int(rng.integers(1, 40)),
        per_layer_rows=VOCAB - int(rng.integers(0, 9)),
        n_streams=int(rng.integers(2, 9)),
        laurel_rank=int(rng.integers(1, 80)),
    )


@pytest.mark.native
@pytest.mark.parametrize("number", range(cases(12, 60)))
def test_every_program_is_what_its_definition_says(number: int) -> None:
    rng = np.random.default_rng([number, 5])
    config = stream_program(rng)
    weights = random_weights(rng, config)
    tokens = [int(token) for token in rng.integers(0, VOCAB, N_TOKENS)]
    exact = {key: values.astype("f8") for key, values in weights.items()}
    wanted, _ = definition.logits_of(config, exact, tokens)
    first = None
    for i, isa in enumerate(usable_levels()):
        chunk = [N_TOKENS, 1, 7][i % 3]
        found = logits(config, weights, isa, 1 + i % 3, chunk, i % 2 == 1, tokens)
        assert np.abs(found - wanted).max() / np.abs(wanted).max() < 2e-4, (isa, config)
        assert first is None or found.tobytes() == first.tobytes(), (isa, config)
        first = found if first is None else first


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"n_streams": 9}, "n_streams is 9, must be 2 to 8"),
        ({"n_streams": 1}, "n_streams is 1, must be 2 to 8"),
        ({"n_streams": 0}, "laurel_rank is 7, must be 0"),
        ({"laurel_rank": 0}, "laurel_rank is 0, must be 1 to 65536"),
        ({"per_layer_size": 0, "per_layer_rows": 0}, "and an input of its own"),
        ({"per_layer_rows": VOCAB + 1}, "per_layer_rows is 38, must be 0 to 37"),
        ({"hidden_size": 48}, "hidden_size is 48, must be a multiple of 32"),
        ({"norm": "layer"}, "layer 0 must have attention"),
        ({"residual_scale": 0.5}, "1 is needed beside"),
    ],
)
def test_what_has_no_streams_is_explained(changes: dict[str, object], error: str) -> None:
    config = replace(stream_program(np.random.default_rng(1)), laurel_rank=7)
    check_program(config, "a")
    with pytest.raises(ModelFileError, match=error):
        check_program(replace(config, **changes), "a")


def test_layers_beside_streams_have_norms_and_gates() -> None:
    config = stream_program(np.random.default_rng(2))
    for change in ({"result_norms": False}, {"wiring": "parallel"}, {"ffn": None}):
        layers = (replace(config.layers[0], **change), *config.layers[1:])
        with pytest.raises(ModelFileError, match=r"layer 0"):
            check_program(replace(config, layers=layers), "a")
