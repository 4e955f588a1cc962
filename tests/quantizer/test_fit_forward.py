"""The calibration's forward pass has the logits of transformers, its moments the inputs'."""

from pathlib import Path

import numpy as np
import pytest

from family_models import GOLDEN as FAMILIES
from family_models import family_model, write_model
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import Attention, Layer, ModelConfig, Plain, Pooling
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise_quantizer.fit.calibrate import Quantizer, calibrate
from lanewise_quantizer.fit.experts import STACKED
from lanewise_quantizer.fit.forward import check_computable, embedded, run
from lanewise_quantizer.fit.layer import BY_HEAD, STEPS, matrices_of
from lanewise_quantizer.fit.mixture import MIN_TOKENS, fitted_tokens
from lanewise_quantizer.fit.recurrence import KEPT
from lanewise_quantizer.fit.source import Source
from latent_programs import with_latent_layers
from random_checkpoints import random_weights
from random_programs import random_program, with_further_kinds
from tests.golden.reference import program as definition
from tiny_models import CONFIGS, tiny_model, write_gguf, write_hf
from topics import cases

N_PROGRAMS = cases(24, 80)
OF_FAMILIES = np.load(FAMILIES / "logits.npz")
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "reference" / "logits.npz")


WITH_STATES = (
    *("lfm2", "lfm2_moe", "qwen3_next", "qwen3_5", "granitemoehybrid_dense", "nemotron_h"),
    *("nemotron_h_moe", "nemotron_h_latent", "falcon_h1", "lfm3", "kimi_linear"),
    "bailing_hybrid",
)


def written(family, kind, folder):
    model = tiny_model(family)
    return write_gguf(model, folder / "m.gguf") if kind == "gguf" else write_hf(model, folder / "m")


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_are_those_of_transformers(family, kind, tmp_path):
    with open_checkpoint(written(family, kind, tmp_path)) as checkpoint:
        source = Source(checkpoint)
        hidden = run(source.config, source, GOLDEN[f"{family}/prompt"][None])
        tied = source.config.tied_embeddings
        head = source(Role.TOKEN_EMBEDDING if tied else Role.OUTPUT)
        found = hidden[0, GOLDEN[f"{family}/positions"]] @ head.T
    expected = GOLDEN[f"{family}/logits"]
    assert np.abs(found - expected).max() / np.abs(expected).max() < 2e-4


def dense_tokens(config, n):
    """Of n tokens, so many that each attends to all before it, whatever an index chooses."""
    attention = [layer.attention for layer in config.layers if layer.attention is not None]
    return min([n, *(one.index_topk for one in attention if one.index_topk)])


@pytest.mark.parametrize("name", sorted({key.split("/")[0] for key in OF_FAMILIES.files}))
def test_every_family_is_computed_as_by_transformers(name, tmp_path):
    with open_checkpoint(write_model(family_model(name), tmp_path / "m")) as checkpoint:
        source = Source(checkpoint)
        config = source.config
        if config.n_streams or config.hyper_streams:
            with pytest.raises(ModelFileError, match="calibration cannot compute several"):
                check_computable(config)
            return
        prompt, positions = OF_FAMILIES[f"{name}/prompt"], OF_FAMILIES[f"{name}/positions"]
        if (n := dense_tokens(config, len(prompt))) < len(prompt):
            with pytest.raises(ModelFileError, match=f"accepted are windows of at most {n}"):
                run(config, source, prompt[None])
        positions = positions[positions < n]
        assert positions.size
        hidden = run(config, source, prompt[None, :n])
        head = source(Role.TOKEN_EMBEDDING if config.tied_embeddings else Role.OUTPUT)
        found = hidden[0, positions] @ head.T
        found *= np.float32(config.logit_scale)
        if config.output_bias:
            found += source(Role.OUTPUT_BIAS)
        found = definition.capped(found, config.logit_softcap)
    expected = OF_FAMILIES[f"{name}/logits"][: positions.size]
    assert np.abs(found - expected).max() / np.abs(expected).max() < 2e-5


def test_random_programs_are_computed_as_their_definition_says():
    """Combinations that no family has yet, two windows of a text at a time."""
    unclear = 0
    for number in range(N_PROGRAMS):
        rng = np.random.default_rng(number)
        config = random_program(rng)
        if number % 2:
            config = with_further_kinds(np.random.default_rng([number, 1]), config)
        if number % 3 == 0:
            config = with_latent_layers(np.random.default_rng([number, 2]), config)
        weights = {
            key: values.reshape(-1) if key[0] == Role.SHARED_ROUTER else values
            for key, values in random_weights(rng, config).items()
        }
        exact = {key: values.astype("f8") for key, values in weights.items()}
        ids = rng.integers(0, config.vocab_size, (2, dense_tokens(config, 30)))
        wanted, margins = zip(
            *(definition.logits_of(config, exact, list(text)) for text in ids), strict=True
        )
        if min(margins) < 1e-5:  # rounding may choose another expert
            unclear += 1
            continue
        head = weights[Role.TOKEN_EMBEDDING if config.tied_embeddings else Role.OUTPUT, 0]
        hidden = run(config, lambda role, layer: weights[role, layer], ids)  # noqa: B023
        found = hidden @ head.T * np.float32(config.logit_scale)
        if config.output_bias:
            found += weights[Role.OUTPUT_BIAS, 0]
        found = definition.capped(found, config.logit_softcap)
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert error < 2e-4, (number, error, config)
    assert unclear <= N_PROGRAMS // 10


def mean_of(x, behind=None):
    """The mean of x x^T over tokens, or of (y - x) x^T, each token by 1 / (x . x)."""
    rows = x.reshape(-1, x.shape[-1])
    scaled = rows / np.square(rows).sum(axis=1, keepdims=True)
    left = rows if behind is None else behind.reshape(rows.shape) - rows
    return left.T @ scaled / len(rows)


def whole_parts(source, role, layer):
    """Of all experts or heads [parts, outputs, inputs]."""
    of_heads = role in BY_HEAD
    n = source.config.heads.n_heads if of_heads else source.n_experts(layer)
    weights = source(role, layer)
    return weights.reshape(n, -1, weights.shape[1])


def begun(source, ids):
    """A text before the first layer."""
    rows = None
    if source.config.per_layer_size:
        rows = source.rows(Role.PER_LAYER_EMBEDDING, ids)
    return embedded(source.config, source, source.rows(Role.TOKEN_EMBEDDING, ids), rows)


@pytest.mark.parametrize(
    "name",
    [
        *("qwen3_moe_dense", "gpt_oss", "qwen2_moe", "granite", "smollm3"),
        "gemma4_small",
        *WITH_STATES,
    ],
)
def test_a_model_that_is_kept_is_walked_through_as_it_is(name, tmp_path):
    """Every matrix but routers once, experts in order; what the head is given is the model's."""
    with open_checkpoint(write_model(family_model(name), tmp_path / "m")) as checkpoint:
        source = Source(checkpoint)
        config = source.config
        ids = np.arange(2 * 24).reshape(2, 24) * 7 % 200
        matrices, parts = [], []

        def keep(role, layer, weights, moment):
            matrices.append((role, layer))
            return weights

        def keep_parts(role, layer, made):
            for number, part in enumerate(made):
                parts.append((role, layer, number))
                assert np.array_equal(part.weights, whole_parts(source, role, layer)[number])
                assert part.moment.tokens == ids.size  # 48 are few: all are borrowed
                part.take(part.weights)

        text, beside = begun(source, ids), begun(source, ids)
        head = calibrate(source, text, Quantizer(keep, keep_parts), beside)
        expected = run(config, source, ids)
        size = np.abs(text.x).max()
        assert np.abs(text.x - beside.x).max() < 1e-5 * size
        assert np.abs(head.drift).max() < 1e-4 * np.abs(head.sum).max()
        np.testing.assert_allclose(head.mean(), mean_of(expected), rtol=1e-3, atol=1e-5)
        wanted = {(r, n) for n in range(config.n_layers) for r in matrices_of(config, n)}
        in_parts = (*BY_HEAD, *STACKED)
        single = {key for key in wanted if key[0] not in (*in_parts, *KEPT, Role.ROUTER)}
        if config.per_layer_size:
            single.add((Role.PER_LAYER_PROJECTION, 0))
        assert sorted(matrices) == sorted(single)
        assert parts == [
            (role, n, number)
            for n in range(config.n_layers)
            for role in matrices_of(config, n)
            if role in in_parts
            for number in range(len(whole_parts(source, role, n)))
        ]


def test_experts_that_few_tokens_go_to_borrow_others():
    found = fitted_tokens(np.array([3, 5]), 4000)
    assert {3, 5} <= set(found.tolist())
    assert len(found) == len(set(found.tolist())) == MIN_TOKENS
    assert np.diff(found).max() < 2 * 4000 / MIN_TOKENS  # from all of the text
    many = np.arange(0, 3000, 2)
    assert fitted_tokens(many, 3000) is many
    assert fitted_tokens(np.array([], np.intp), 10).tolist() == list(range(10))


def test_encoders_are_not_calibrated():
    layer = Layer(Attention(2, 2, 16, rope=None), Plain(32))
    parts = {"norm": "layer", "pooling": Pooling("mean")}
    config = ModelConfig("bert", 32, 99, 64, 1e-5, True, (), (layer,), **parts)
    with pytest.raises(ModelFileError, match="bert: calibration cannot compute"):
        check_computable(config)


def of_single(one):
    """Parts of matrices as if each were one."""

    def parts(role, layer, made):
        for part in made:
            part.take(one(role, layer, part.weights, part.moment))

    return Quantizer(one, parts)


def test_each_matrix_is_quantized_once_on_inputs_of_the_quantized_model(tmp_path):
    """With matrices replaced by others, moments and outputs are those of the others' model."""
    with open_checkpoint(written("qwen3", "safetensors", tmp_path)) as checkpoint:
        source = Source(checkpoint)
        ids = np.arange(2 * 24).reshape(2, 24) % 200 + 2
        replaced, order, traces = {}, [], {}

        def quantize(role, layer, weights, moment):
            order.append((role, layer))
            replaced[role, layer] = np.round(weights * 64) / np.float32(64)
            assert moment.tokens == ids.size
            traces[role, layer] = moment.mean()
            return replaced[role, layer]

        embedding = source(Role.TOKEN_EMBEDDING)
        head = calibrate(source, begun(source, ids), of_single(quantize))
        layers = range(source.config.n_layers)
        assert order == [(r, layer) for layer in layers for step in STEPS for r in step]

        def weights(role, layer=0):
            key = (role, layer)
            return replaced[key] if key in replaced else source(role, layer)

        hidden = run(source.config, weights, ids)
        np.testing.assert_allclose(head.mean(), mean_of(hidden), rtol=1e-3, atol=1e-5)
        first = embedding[ids].reshape(-1, embedding.shape[1])
        scale = 1 / np.sqrt(np.mean(first**2, axis=1, keepdims=True) + source.config.rms_norm_eps)
        normed = first * scale * source(Role.ATTN_NORM)
        np.testing.assert_allclose(traces[Role.ATTN_V, 0], mean_of(normed), rtol=1e-3, atol=1e-5)
        assert traces[Role.FFN_DOWN, 1].shape == (source.config.layers[0].ffn.size,) * 2


def test_drift_is_from_the_inputs_of_the_model_as_it_is(tmp_path):
    with open_checkpoint(written("qwen3", "safetensors", tmp_path)) as checkpoint:
        source = Source(checkpoint)
        ids = np.arange(2 * 24).reshape(2, 24) % 200 + 2
        replaced, moments = {}, {}

        def quantize(role, layer, weights, moment):
            moments[role, layer] = moment
            replaced[role, layer] = np.round(weights * 16) / np.float32(16)
            return replaced[role, layer]

        def weights(role, layer=0):
            key = (role, layer)
            return replaced[key] if key in replaced else source(role, layer)

        texts = begun(source, ids), begun(source, ids)
        head = calibrate(source, texts[0], of_single(quantize), texts[1])
        assert not moments[Role.ATTN_Q, 0].drift.any()
        assert moments[Role.FFN_GATE, 0].drift.any()
        assert moments[Role.FFN_DOWN, 0].missing.any()
        x, y = run(source.config, weights, ids), run(source.config, source, ids)
        expected = mean_of(x, y)
        found = head.drift / head.tokens
        assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_what_a_norm_follows_is_asked_for_nothing_in_the_size_of_hidden_states(tmp_path):
    """Smaller matrices before a norm give the same model: what they miss is smaller by as much.

    Had the drift of hidden states been added, as large as before, it would be all there is.
    """
    missed = []
    for factor in (1, 1 / 64):
        model = family_model("gemma3")
        for name, values in model.tensors.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                model.tensors[name] = values * np.float32(factor)
        with open_checkpoint(write_model(model, tmp_path / f"m{factor}")) as checkpoint:
            source = Source(checkpoint)
            ids = np.arange(2 * 24).reshape(2, 24) % 200 + 2
            found = {}

            def quantize(role, layer, weights, moment, found=found):
                found[role, layer] = moment.missing
                step = np.float32(np.exp2(np.floor(np.log2(np.abs(weights).max())) - 3))
                return np.round(weights / step) * step

            calibrate(source, begun(source, ids), of_single(quantize), begun(source, ids))
        missed.append(found)
    for role in (Role.ATTN_OUTPUT, Role.FFN_DOWN):
        usual, small = (found[role, 1] for found in missed)
        assert np.linalg.norm(small * 64 - usual) < 0.1 * np.linalg.norm(usual), role


def test_a_tensor_with_nan_is_named(tmp_path):
    model = tiny_model("llama2")
    name = "model.layers.1.mlp.up_proj.weight"
    model.tensors[name][3, 5] = np.nan
    with open_checkpoint(write_hf(model, tmp_path / "m")) as checkpoint:
        source = Source(checkpoint)
        with pytest.raises(ModelFileError, match=f"{name}.*row 3 holds NaN"):
            source(Role.FFN_UP, 1)
