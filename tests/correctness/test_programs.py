"""Random programs of layers: the library at every level against their definition in float64."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Plain,
    Rope,
)
from lanewise.native.library import NativeError
from lanewise.runtime import Batch, Model, Session, usable_levels
from latent_programs import with_latent_layers
from random_checkpoints import VOCAB, checkpoint, random_weights
from random_programs import N_TOKENS, random_program, with_further_kinds
from tests.golden.reference import program as definition
from topics import cases

pytestmark = pytest.mark.native
N_PROGRAMS = cases(60, 500)
PARTS = 10  # that they are tested in


@pytest.mark.parametrize("gated", [True, False])
def test_a_session_counts_the_rows_of_experts(gated):
    rng = np.random.default_rng(5)
    ffn = Experts(n=4, n_used=2, size=32, router="softmax", shared_size=32, gated=gated)
    layer = Layer(Attention(2, 1, 8, rope=0), ffn)
    config = ModelConfig("random", 32, VOCAB, 256, 1e-5, True, (Rope(1e4, 8),), (layer, layer))
    model = Model.load(checkpoint(config, random_weights(rng, config)))
    with (
        model,
        Session(model, threads=2, blocks=2, max_batch_tokens=40, max_batch_logits=2) as session,
    ):
        session.step(Batch(list(range(9)), [0, 9], [0], [[0]], [8]))
        counters = session.counters()
        # The second layer sees nothing but the row whose logits are wanted.
        assert counters.expert_rows == 2 * 9 + 2
        assert counters.experts_by_rows[0] >= 2
        assert 4 <= sum(counters.experts_by_rows) <= 6
    # An expert of 32 has 32 * 32 weights two or three times; of four, a token has two and the
    # shared one.
    matrices = 2 + gated
    assert model.info.held_weights - model.info.matrix_weights == 2 * 2 * matrices * 32 * 32
    assert model.info.expert_bytes == 2 * 2 * matrices * 32 * 32 * 4


def test_a_sequence_ends_with_the_positions_that_a_model_has_learned():
    layer = Layer(Attention(2, 1, 8, rope=None), Plain(32, activation="gelu_tanh"))
    config = ModelConfig("random", 32, VOCAB, 20, 1e-5, True, (), (layer,), learned_positions=True)
    rng = np.random.default_rng(3)
    with (
        Model.load(checkpoint(config, random_weights(rng, config))) as model,
        Session(model, threads=1, blocks=1, max_batch_tokens=40, max_batch_logits=1) as session,
    ):
        session.step(Batch(list(range(20)), [0, 20], [0], [[0]], [19]))
        with pytest.raises(NativeError, match="sequence 0 has 21 tokens, the model has positions"):
            session.step(Batch([5], [0, 1], [20], [[0]], [0]))


def all_further_kinds() -> ModelConfig:
    """Every further kind that can be beside the others, of sizes that matrices of Q8_0 have."""
    first = Attention(4, 2, 32, rope=0, qk_norm="turned", score_softcap=2.0, value_norm=True)
    larger = Attention(2, 1, 64, rope=1, qk_norm="head", window=24, values_are_keys=True)
    larger = replace(larger, qk_norm="layer")
    larger = replace(larger, distances=7)
    reader = replace(larger, n_heads=4, values_are_keys=False, kv_layer=1)
    reader = replace(reader, distances=286, disentangled=True)
    ffn = Gated(96, activation="gelu_tanh")
    first = replace(first, alibi=True, scaled_alibi=True)
    layers = (
        Layer(first, ffn, result_norms=True, no_input_norms=True),
        Layer(larger, ffn, wiring="parallel_one_norm"),
        Layer(reader, Plain(160, bias=True), wiring="parallel", output_scale=0.5),
    )
    ropes = (Rope(1e4, 32), Rope(1e6, 16))
    config = ModelConfig("random", 64, VOCAB, 256, 1e-5, False, ropes, layers)
    ends = {"learned_positions": True, "output_bias": True, "logit_softcap": 4.0}
    ends |= {"embedding_norm": True, "result_eps": 0.25}
    return replace(config, per_layer_size=32, **ends)


def test_float_activations_compute_all_further_kinds():
    config, rng = all_further_kinds(), np.random.default_rng(7)
    kind = gguf.GGMLQuantizationType.Q8_0
    weights = {
        key: values
        if values.ndim == 1 or key[0] is Role.POSITION_EMBEDDING
        else gguf.dequantize(gguf.quantize(values, kind), kind)
        for key, values in random_weights(rng, config).items()
    }
    exact = {key: values.astype("f8") for key, values in weights.items()}
    tokens = [int(token) for token in rng.integers(0, VOCAB, N_TOKENS)]
    wanted, _ = definition.logits_of(config, exact, tokens)
    errors = []
    for is_exact in (True, False):
        with (
            Model.load(checkpoint(config, weights), weights="q8_0") as model,
            Session(
                model,
                threads=2,
                blocks=2,
                kv_type="f32",
                max_batch_tokens=N_TOKENS,
                max_batch_logits=N_TOKENS,
                float_activations=is_exact,
            ) as session,
        ):
            rows = list(range(N_TOKENS))
            found = session.step(Batch(tokens, [0, N_TOKENS], [0], [[0, 1]], rows))
            errors.append(np.abs(found - wanted).max() / np.abs(wanted).max())
    assert errors[0] < 1e-5 < errors[1] < 0.1


def logits(
    config: ModelConfig, weights, isa: str, threads: int, chunk: int, by_window: bool, tokens
) -> np.ndarray:
    """All logits, the prompt in chunks beside another one."""
    with Model.load(checkpoint(config, weights), isa=isa, threads=1) as model:
        n_groups = len(model.kv_layout("f32", groups_by_window=by_window).windows)
        tables = np.arange(4 * n_groups, dtype=np.uint32).reshape(2, n_groups, 2)
        session = Session(
            model,
            threads=threads,
            blocks=4 * n_groups,
            groups_by_window=by_window,
            states=2,
            max_batch_tokens=2 * N_TOKENS,
            max_batch_logits=2 * N_TOKENS,
            kv_type="f32",
        )
        rows = []
        for at in range(0, len(tokens), chunk):
            now = tokens[at : at + chunk]
            other = now[::-1]
            n = len(now)
            batch = Batch([*now, *other], [0, n, 2 * n], [at, at], tables[::-1], list(range(2 * n)))
            rows.append(session.step(batch)[:n].copy())
        return np.concatenate(rows)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_program_is_what_its_definition_says(part):
    levels, unclear = usable_levels(), 0
    for number in range(part, N_PROGRAMS, PARTS):
        rng = np.random.default_rng(number)
        config = random_program(rng)
        if number % 2:
            config = with_further_kinds(np.random.default_rng([number, 1]), config)
        if number % 3 == 0:
            config = with_latent_layers(np.random.default_rng([number, 2]), config)
        weights = random_weights(rng, config)
        tokens = [int(token) for token in rng.integers(0, VOCAB, N_TOKENS)]
        exact = {key: values.astype("f8") for key, values in weights.items()}
        wanted, margin = definition.logits_of(config, exact, tokens)
        if margin < 1e-6:  # rounding may choose another expert
            unclear += 1
            continue
        size = np.abs(wanted).max()
        first = None
        for i, isa in enumerate(levels):
            chunk = [N_TOKENS, 1, 7][i % 3]
            found = logits(config, weights, isa, 1 + i % 3, chunk, i % 2 == 1, tokens)
            error = np.abs(found - wanted).max() / size
            assert error < 2e-4, (number, isa, error, config)
            assert first is None or found.tobytes() == first.tobytes(), (number, isa, config)
            first = found if first is None else first
    assert unclear <= N_PROGRAMS // PARTS // 10
