"""EmbeddingGemma as sentence-transformers has it, and as GGUF; without, it is in test_encoders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from encoder_models import GOLDEN, encoder_model, texts_of
from family_models import FamilyModel, values_of, write_model
from gguf_values import add_value, write_out
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.program import Rope
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import usable_levels
from opened_models import opened_encoder, write_as_packed
from published_configs import ENCODERS
from tiny_embedder import modules_of, write_files

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

SIZE, INNER = 48, 96
CONFIG = ENCODERS["embedding_gemma"]
RESULTS = np.load(GOLDEN / "results.npz")
NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
MATRICES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gemma() -> FamilyModel:
    return encoder_model("embedding_gemma")


def heads() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    first, second = values_of("dense_2", (INNER, SIZE)), values_of("dense_3", (SIZE, INNER))
    return first, second


def write_directory(folder: Path) -> Path:
    """Write what sentence-transformers reads: a mean, two dense modules, length 1."""
    write_model(gemma(), folder)
    files = {
        "modules.json": modules_of("Transformer", "Pooling", "Dense", "Dense", "Normalize"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "config_sentence_transformers.json": {"prompts": {"query": "task: search | query: "}},
    }
    for number, head in zip((2, 3), heads(), strict=True):
        sizes = {"out_features": head.shape[0], "in_features": head.shape[1], "bias": False}
        curve = "torch.nn.modules.linear.Identity"
        files[f"{number}_Dense/config.json"] = sizes | {"activation_function": curve}
    write_files(folder, files)
    for number, head in zip((2, 3), heads(), strict=True):
        save_file({"linear.weight": head}, folder / f"{number}_Dense" / "model.safetensors")
    return folder


def write_gguf(path: Path, **metadata: Any) -> Path:
    """Write a file as the public converter does, its dense modules among the tensors."""
    arch, model = "gemma-embedding", gemma()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(300)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(7)
    writer.add_feed_forward_length(80)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(8)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    for key, value in metadata.items():
        add_value(writer, f"{arch}.{key}", value)
    for number, head in zip((2, 3), heads(), strict=True):
        writer.add_uint32(f"{arch}.dense_{number}_feat_in", head.shape[1])
        writer.add_uint32(f"{arch}.dense_{number}_feat_out", head.shape[0])
        writer.add_tensor(f"dense_{number}.weight", head)
    names = NORMS | MATRICES
    for name, array in model.tensors.items():
        values = array + np.float32(1) if "norm" in name else array
        if name.startswith("layers."):
            _, layer, of_layer = name.removesuffix(".weight").split(".", 2)
            writer.add_tensor(f"blk.{layer}.{names[of_layer]}.weight", values)
        else:
            known = {
                "embed_tokens.weight": "token_embd.weight",
                "norm.weight": "output_norm.weight",
            }
            writer.add_tensor(known[name], values)
    write_out(writer)
    return path


def vectors(path: Path, isa: str | None = None, threads: int = 1, **options: Any) -> Any:
    weights = options.pop("weights", None)
    with opened_encoder(path, isa, threads, weights) as encoder:
        return encoder.run(texts_of(), **options)


def test_vectors_are_those_of_means_through_both_modules_at_all_levels(tmp_path: Path) -> None:
    path, found = write_directory(tmp_path / "model"), set()
    first, second = heads()
    expected = RESULTS["embedding_gemma"][:, 1] @ first.T @ second.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for i, isa in enumerate(usable_levels()):
        result = vectors(path, isa, 1 + i % 3)
        assert np.abs(result - expected).max() < 1e-5
        found.add(result.tobytes())
    assert len(found) == 1
    assert len({vectors(path, isa, 2, weights="q8_0").tobytes() for isa in usable_levels()}) == 1


def test_a_gguf_file_has_the_bits_of_the_directory(tmp_path: Path) -> None:
    found = vectors(write_gguf(tmp_path / "m.gguf"), normalize=True)
    assert found.tobytes() == vectors(write_directory(tmp_path / "model")).tobytes()


def test_a_packed_directory_has_the_bits_of_the_directory(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "model")
    packed = write_as_packed(path, tmp_path / "packed")
    assert vectors(packed).tobytes() == vectors(path).tobytes()


def test_the_pattern_says_which_layers_see_all_where_no_list_does(tmp_path: Path) -> None:
    without = {key: value for key, value in CONFIG.items() if key != "layer_types"}
    one = write_model(gemma(), tmp_path / "one")
    other = write_model(gemma(), tmp_path / "other", without)
    with open_checkpoint(one) as a, open_checkpoint(other) as b:
        assert a.config == b.config


def test_layers_that_see_neighbours_turn_by_angles_that_nothing_scales(tmp_path: Path) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 75}
    scaled = CONFIG | {"rope_scaling": yarn | {"rope_type": "yarn"}}
    directory = write_model(gemma(), tmp_path / "model", scaled)
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 75}
    metadata = {f"rope.scaling.{key}": value for key, value in keys.items()}
    with (
        open_checkpoint(directory) as one,
        open_checkpoint(write_gguf(tmp_path / "m.gguf", **metadata)) as other,
    ):
        assert one.config.ropes == other.config.ropes
        whole, local = one.config.ropes
    assert whole.factors is not None
    assert whole.scale > 1
    assert local == Rope(1e4, 16)


def test_the_embedding_is_scaled_in_the_type_that_it_has(tmp_path: Path) -> None:
    """The root of 48 is 6.9282; of 8 bits, 6.9375."""
    model = gemma()
    halves = {name: array.astype(np.float16) for name, array in model.tensors.items()}
    path = write_model(replace(model, tensors=halves), tmp_path / "f16")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.embedding_scale == float(np.float16(np.sqrt(48)))


def test_what_does_not_see_both_ways_writes_text(tmp_path: Path) -> None:
    """By the same layers, with whole windows before each token; its configs leave out much."""
    path = write_model(gemma(), tmp_path / "model", CONFIG)
    other = write_model(
        gemma(), tmp_path / "decoder", CONFIG | {"use_bidirectional_attention": False}
    )
    with open_checkpoint(path) as one, open_checkpoint(other) as two:
        assert one.config.pooling is not None
        assert two.config.pooling is None
        windows = [layer.attention.window for layer in two.config.layers]
        assert windows[:6] == [CONFIG["sliding_window"]] * 5 + [None]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"hidden_activation": "mish"}, "hidden_activation"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_it_does_not_compute_is_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = write_model(gemma(), tmp_path / "model", CONFIG | changes)
    with pytest.raises(ModelFileError, match=says):
        open_checkpoint(path).close()
