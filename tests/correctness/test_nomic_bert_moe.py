"""NomicBERT with experts, which transformers does not have, against its definition in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from encoder_models import texts_of, write_gguf
from family_models import FamilyModel, values_of, write_model
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.program import Experts, Plain
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Encoder, Model, usable_levels
from opened_models import opened_encoder, write_as_packed
from published_configs import PUBLISHED

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

Array = NDArray[np.float64]
HIDDEN, SIZE, HEADS, LAYERS, EXPERTS, USED = 64, 96, 4, 4, 5, 2
HEAD, THETA, EPS = HIDDEN // HEADS, 10000.0, 1e-5
# What the config.json of nomic-embed-text-v2-moe says otherwise than that of the first version.
CONFIG = PUBLISHED["nomic_bert"] | {
    "architectures": ["NomicBertModel"],
    "activation_function": "gelu",
    "expert_choice_router": False,
    "ffn_div": 1,
    "layer_norm_epsilon": EPS,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": USED,
    "n_embd": HIDDEN,
    "n_head": HEADS,
    "n_inner": SIZE,
    "n_layer": LAYERS,
    "num_experts": EXPERTS,
    "num_shared_experts": 0,
    "pad_token_id": 1,
    "qkv_proj_bias": True,
    "rotary_emb_base": int(THETA),
    "router_aux_loss_coef": 0.1,
    "type_vocab_size": 1,
    "use_rms_norm": None,
}
LENGTHS = (1, 9, 70, 33)


def nomic_model() -> FamilyModel:
    """Return a model with experts in its second and fourth layer, as its makers name tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (256, HIDDEN),
        "embeddings.token_type_embeddings.weight": (1, HIDDEN),
        "emb_ln.weight": (HIDDEN,),
        "emb_ln.bias": (HIDDEN,),
    }
    for i in range(LAYERS):
        folder = f"encoder.layers.{i}"
        matrices = {"attn.Wqkv": (3 * HIDDEN, HIDDEN), "attn.out_proj": (HIDDEN, HIDDEN)}
        if i % 2 == 0:
            matrices |= {"mlp.fc1": (SIZE, HIDDEN), "mlp.fc2": (HIDDEN, SIZE)}
        for name, shape in matrices.items():
            shapes |= {f"{folder}.{name}.weight": shape, f"{folder}.{name}.bias": shape[:1]}
        for name in ("norm1", "norm2"):
            shapes[f"{folder}.{name}.weight"] = shapes[f"{folder}.{name}.bias"] = (HIDDEN,)
        if i % 2:
            shapes[f"{folder}.mlp.router.layer.weight"] = (EXPERTS, HIDDEN)
            shapes[f"{folder}.mlp.experts.mlp.w1"] = (EXPERTS * SIZE, HIDDEN)
            shapes[f"{folder}.mlp.experts.mlp.w2"] = (EXPERTS * SIZE, HIDDEN)
            shapes[f"{folder}.mlp.experts.bias"] = (HIDDEN,)
    return FamilyModel("nomic_moe", CONFIG, {k: values_of(k, v) for k, v in shapes.items()})


def gelu(x: Array) -> Array:
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2)


def turned(heads: Array) -> Array:
    """[heads][tokens][HEAD] by the angles of their positions."""
    half = HEAD // 2
    angles = np.arange(heads.shape[1])[:, None] * THETA ** (-np.arange(half) / half)
    a, b = heads[..., :half], heads[..., half:]
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate((a * cosine - b * sine, b * cosine + a * sine), axis=-1)


def rows_of(model: FamilyModel, text: NDArray[np.uint32]) -> Array:
    """The rows of one text, from the definition."""
    w = {name: array.astype(np.float64) for name, array in model.tensors.items()}

    def norm(x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
        return np.asarray(x / deviation * w[f"{name}.weight"] + w[f"{name}.bias"])

    def linear(x: Array, name: str) -> Array:
        return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def mixed(x: Array, folder: str) -> Array:
        """The experts of each token by their shares of all, and the bias once."""
        logits = x @ w[f"{folder}.router.layer.weight"].T
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        up, down = (
            w[f"{folder}.experts.mlp.{name}"].reshape(EXPERTS, SIZE, HIDDEN)
            for name in ("w1", "w2")
        )
        out = np.zeros_like(x)
        for row, share in enumerate(shares):
            for expert in np.argsort(-share)[:USED]:
                out[row] += share[expert] * (gelu(x[row] @ up[expert].T) @ down[expert])
        return out + w.get(f"{folder}.experts.bias", 0.0)

    x = w["embeddings.word_embeddings.weight"][text]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for i in range(LAYERS):
        folder = f"encoder.layers.{i}"
        qkv = linear(x, f"{folder}.attn.Wqkv").reshape(len(text), 3, HEADS, HEAD)
        q, k, v = qkv.transpose(1, 2, 0, 3)
        scores = turned(q) @ turned(k).swapaxes(1, 2) / np.sqrt(HEAD)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = weights / weights.sum(-1, keepdims=True) @ v
        seen = seen.swapaxes(0, 1).reshape(len(text), HIDDEN)
        x = norm(x + linear(seen, f"{folder}.attn.out_proj"), f"{folder}.norm1")
        if i % 2:
            added = mixed(x, f"{folder}.mlp")
        else:
            added = linear(gelu(linear(x, f"{folder}.mlp.fc1")), f"{folder}.mlp.fc2")
        x = norm(x + added, f"{folder}.norm2")
    return x


def test_the_program_has_experts_in_every_second_layer(tmp_path: Path) -> None:
    with open_checkpoint(write_model(nomic_model(), tmp_path / "model")) as found:
        plain = Plain(SIZE, True, "gelu")
        of_sparse = found.config.layers[1].ffn
        assert of_sparse == Experts(
            n=EXPERTS,
            n_used=USED,
            size=SIZE,
            router="softmax",
            activation="gelu",
            gated=False,
            down_bias=True,
        )
        assert [layer.ffn for layer in found.config.layers] == [plain, of_sparse] * 2


def test_results_are_those_of_the_definition_at_all_levels(tmp_path: Path) -> None:
    model, texts = nomic_model(), texts_of(LENGTHS)
    expected = np.concatenate([rows_of(model, text) for text in texts])
    path, found = write_model(model, tmp_path / "model"), set()
    for i, isa in enumerate(usable_levels()):
        with opened_encoder(path, isa, 1 + i % 3) as encoder:
            rows = encoder.run(texts, pooling="none")
            assert np.abs(rows - expected).max() < 1e-5 * np.abs(expected).max()
            found.add(rows.tobytes())
            alone = [encoder.run([text], pooling="none") for text in texts]
            found.add(np.concatenate(alone).tobytes())
    packed = write_as_packed(path, tmp_path / "packed", None)
    with opened_encoder(packed, threads=1) as encoder:
        found.add(encoder.run(texts, pooling="none").tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("bias", [False, True])
def test_a_gguf_file_has_the_bits_of_the_directory(bias: bool, tmp_path: Path) -> None:
    """The public converter leaves the experts' bias out."""
    model, texts, found = nomic_model(), texts_of(LENGTHS), set()
    if not bias:
        kept = {k: v for k, v in model.tensors.items() if not k.endswith("experts.bias")}
        model = replace(model, tensors=kept)
    directory = write_model(model, tmp_path / "model")
    named = {}
    for name, array in model.tensors.items():
        if ".experts.mlp." in name:
            array = array.reshape(EXPERTS, SIZE, HIDDEN)
            array = array.swapaxes(1, 2) if name.endswith("w2") else array
        for old, new in (
            ("mlp.router.layer", "ffn_gate_inp"),
            ("mlp.experts.mlp.w1", "ffn_up_exps.weight"),
            ("mlp.experts.mlp.w2", "ffn_down_exps.weight"),
            ("mlp.experts.bias", "ffn_down.bias"),
        ):
            name = name.replace(old, new)
        named[name] = np.ascontiguousarray(array)
    usual = CONFIG | {
        "hidden_size": HIDDEN,
        "intermediate_size": SIZE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 300,
        "layer_norm_eps": EPS,
        "rope_theta": THETA,
    }
    file = write_gguf(replace(model, config=usual, tensors=named), "nomic-bert-moe", tmp_path / "g")
    for path in (directory, file):
        with open_checkpoint(path) as checkpoint, Model.load(checkpoint) as loaded:
            assert loaded.config.layers[1].ffn.down_bias == bias
            with Encoder(loaded, threads=1) as encoder:
                found.add(encoder.run(texts, pooling="mean").tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"expert_choice_router": True}, "expert_choice_router is True; False or None is needed"),
        ({"num_shared_experts": 1}, "num_shared_experts is 1; 0 or None is needed"),
        ({"activation_function": "swiglu"}, "mlp_fc1_bias is True; false of swiglu is needed"),
        ({"activation_function": "glu"}, "activation_function is 'glu'; one of"),
        (
            {"mlp_fc2_bias": False},
            "mlp_fc2_bias is False; true, as mlp_fc1_bias is true, is needed",
        ),
        ({"moe_top_k": 6}, "6"),
        ({"moe_every_n_layers": 3}, "missing tensor"),
    ],
)
def test_other_experts_are_refused(said: dict[str, object], wanted: str, tmp_path: Path) -> None:
    path = write_model(nomic_model(), tmp_path / "m", CONFIG | said)
    with pytest.raises(ModelFileError) as error, open_checkpoint(path):
        pass
    assert wanted in str(error.value)
