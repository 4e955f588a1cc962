"""Inputs that stand out are evened out: the model computes the same, and loses less."""

import numpy as np
import pytest

import tiny_models
from family_models import GOLDEN as FAMILIES
from family_models import family_model, write_model
from lanewise import cli
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise_quantizer.fit.forward import run
from lanewise_quantizer.fit.outliers import evened_out, multiplied_by, places
from lanewise_quantizer.fit.source import Source
from quantizing import logits_of
from topics import thorough

OF_FAMILIES = np.load(FAMILIES / "logits.npz")
NAMES = sorted({key.split("/")[0] for key in OF_FAMILIES.files})
OFTEN = ["gemma4_small", "phi3", "gpt2", "stablelm", "qwen3_next", "bitnet"]


def computed(source):
    attention = [layer.attention for layer in source.config.layers if layer.attention is not None]
    n = min([12, *(one.index_topk for one in attention if one.index_topk)])
    return run(source.config, source, (np.arange(n) * 37 % 250)[None])


@pytest.mark.parametrize("name", [*OFTEN, *thorough(*(one for one in NAMES if one not in OFTEN))])
def test_factors_anywhere_change_nothing(name, tmp_path):
    """Whatever reads an input knows its factor: to the bit, for factors are powers of two."""
    with open_checkpoint(write_model(family_model(name), tmp_path / "m")) as checkpoint:
        source = Source(checkpoint)
        if source.config.n_streams or source.config.hyper_streams:
            return  # calibration does not run it
        expected, rng = computed(source), np.random.default_rng(5)
        chosen = []
        for place in places(source):
            size = source.tensors[place.readers[0]].cols
            chosen.append((place, np.exp2(rng.integers(-3, 4, size)).astype(np.float32)))
        multiplied_by(source, chosen).applied_to(checkpoint)
        assert np.array_equal(computed(Source(checkpoint)), expected)


def with_outliers(name, factor=64.0):
    """A model that computes what a case of Gemma 4 does, with an input of each 16 that stands out:
    before attention and the FFN, within the FFN, and in the table of what layers have of tokens."""
    model = family_model(name)
    of = model.tensors
    rng = np.random.default_rng(2)

    def factors(size):
        found = np.ones(size, np.float32)
        found[np.arange(0, size, 16) + rng.integers(0, 16, -(-size // 16))] = factor
        return found

    layers = model.config["num_hidden_layers"]
    for number in range(layers):
        at = f"model.layers.{number}."
        for norm, readers in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("pre_feedforward_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            by = factors(of[f"{at}{norm}.weight"].size)
            of[f"{at}{norm}.weight"] = of[f"{at}{norm}.weight"] / by
            for reader in readers:
                if f"{at}{reader}.weight" in of:
                    of[f"{at}{reader}.weight"] = of[f"{at}{reader}.weight"] * by
        by = factors(of[f"{at}mlp.down_proj.weight"].shape[1])
        of[f"{at}mlp.down_proj.weight"] = of[f"{at}mlp.down_proj.weight"] * by
        of[f"{at}mlp.up_proj.weight"] = of[f"{at}mlp.up_proj.weight"] / by[:, None]
    norm, table = "model.per_layer_projection_norm.weight", "model.embed_tokens_per_layer.weight"
    by = factors(of[norm].size)
    of[norm], of[table] = of[norm] * by, of[table] * np.tile(by, layers)
    for number in range(layers):
        name = f"model.layers.{number}.per_layer_projection.weight"
        of[name] = of[name] / by
    return model


def test_what_stands_out_is_found_and_undone(tmp_path):
    path = write_model(family_model("gemma4_small"), tmp_path / "even")
    odd = write_model(with_outliers("gemma4_small"), tmp_path / "odd")
    with open_checkpoint(path) as even, open_checkpoint(odd) as checkpoint:
        assert evened_out(Source(even)).inputs == 0
        expected = computed(Source(even))
        assert np.array_equal(computed(Source(checkpoint)), expected)
        found = evened_out(Source(checkpoint))
        found.applied_to(checkpoint)
        made, wanted = Source(checkpoint), Source(even)
        for role, layer in made.tensors:
            if role is not Role.PER_LAYER_EMBEDDING:
                assert np.array_equal(made(role, layer), wanted(role, layer)), (role, layer)
        assert evened_out(made).inputs == 0
    assert "stood out from their neighbours" in str(found)


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_calibrated_four_bits_keep_what_plain_ones_lose(tmp_path, capsys):
    source = write_model(with_outliers("gemma4_small"), tmp_path / "odd")
    text = tiny_models.write_text(tmp_path / "text.txt")
    ids, exact = tiny_models.prompt(40), logits_of(source)
    lost = {}
    for name, calibrate in (("plain", "none"), ("fitted", str(text))):
        options = ["--format", "q4_0", "--calibrate", calibrate, "--calibration-tokens", "512"]
        out = tmp_path / name
        assert cli.main(["quantize", str(source), "-o", str(out), *options]) == 0
        found = logits_of(out, ids)
        lost[name] = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert "stood out from their neighbours" in capsys.readouterr().err
    assert lost["fitted"] < 0.5 * lost["plain"]
