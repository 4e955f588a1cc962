"""Files of embedders and rerankers as their makers and other programs write them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from model_files import TinyModel, error_of
from model_files import write_gguf as write_text_gguf
from safetensors.numpy import save_file

from encoder_models import encoder_model, write_gguf
from encoder_tokenizers import converted, word_piece
from family_models import FamilyModel, family_model, write_model
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Dense, Pooling
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.server.make_encoder import longest_text
from lanewise.settings import SettingsError
from lanewise.text.pooled_text import of_checkpoint
from lanewise.text.tokenizer import Tokenizer
from opened_models import write_as_packed
from published_configs import PUBLISHED
from tiny_embedder import modules_of


def name_modules(folder: Path, *kinds: str, pooling: str = "lasttoken") -> Path:
    (folder / "modules.json").write_text(json.dumps(modules_of(*kinds)))
    (folder / "1_Pooling").mkdir()
    said = json.dumps({f"pooling_mode_{pooling}": True})
    (folder / "1_Pooling" / "config.json").write_text(said)
    return folder


@pytest.mark.parametrize("head", [False, True])
def test_an_embedder_made_of_a_trunk(head: bool, tmp_path: Path) -> None:
    """Names without a prefix, no head, and a config that says that there is one of its own."""
    model = family_model("qwen3_bias")
    tensors = {
        name.removeprefix("model."): values
        for name, values in model.tensors.items()
        if head or name != "lm_head.weight"
    }
    config = model.config | {"tie_word_embeddings": False}
    bare = write_model(replace(model, tensors=tensors), tmp_path / "bare", config)
    if not head:
        assert "missing tensor 'lm_head.weight'" in (error_of(bare) or "")
    name_modules(bare, "Transformer", "Pooling", "Normalize")
    with (
        open_checkpoint(bare) as found,
        open_checkpoint(write_model(model, tmp_path / "whole", config)) as whole,
    ):
        assert found.config == replace(whole.config, pooling=Pooling("last", True))
        wanted = [one for one in whole.tensors if one.role is not Role.OUTPUT]
        assert [bytes(one.data) for one in found.tensors] == [bytes(one.data) for one in wanted]


@pytest.mark.parametrize(("name", "labels"), [("reranker", 1), ("classifier", 2)])
def test_a_scorer_made_of_a_model_that_wrote_text(name: str, labels: int, tmp_path: Path) -> None:
    """Its last row has a score for each label; one label ranks documents."""
    model = encoder_model(f"qwen3_{name}")
    with open_checkpoint(write_model(model, tmp_path / "scorer")) as found:
        assert found.config.pooling == Pooling("last", dense=(Dense(labels),))
        assert Role.OUTPUT not in {one.role for one in found.tensors}
        text = of_checkpoint(found, Tokenizer.from_files(found.tokenizer))
        assert (len(text.labels), text.ranks, text.judged) == (labels, labels == 1, None)
        (pair,) = text.whole.encode([("a query", "a document")], 100)
        assert pair.ids.tolist() == [*b"a query", *b"a document"] or len(pair.ids) == 17


def test_a_scorer_without_its_scores_is_refused(tmp_path: Path) -> None:
    model = encoder_model("qwen3_reranker")
    head = model.tensors.pop("score.weight")
    wanted = "tensor 'score.weight' is missing; a model whose architecture ends in"
    assert wanted in (error_of(write_model(model, tmp_path / "none")) or "")
    model.tensors["score.weight"] = head.reshape(-1)
    wanted = "tensor 'score.weight' is of shape [48]"
    assert wanted in (error_of(write_model(model, tmp_path / "vector")) or "")
    model.tensors["score.weight"] = head
    other = model.config | {"architectures": ["Qwen3ForCausalLM"]}
    wanted = "unknown tensor 'score.weight'"
    assert wanted in (error_of(write_model(model, tmp_path / "text", other)) or "")


@pytest.mark.parametrize(("number", "kind"), [(0, None), (1, "mean"), (2, "cls"), (3, "last")])
def test_a_gguf_file_says_how_rows_are_pooled(
    number: int, kind: str | None, tmp_path: Path
) -> None:
    said = {"llama.pooling_type": gguf.PoolingType(number)}
    with open_checkpoint(write_text_gguf(tmp_path / "m.gguf", TinyModel(), said)) as found:
        assert found.config.pooling == (kind and Pooling(kind, normalize=True))
        assert (Role.OUTPUT in {one.role for one in found.tensors}) == (kind is None)


def test_a_gguf_file_whose_rows_are_scored_has_a_head_for_it(tmp_path: Path) -> None:
    path = write_text_gguf(tmp_path / "m.gguf", TinyModel(), {"llama.pooling_type": 4})
    said = error_of(path) or ""
    assert "llama.pooling_type is 4; a tensor 'cls.output.weight' of 2 rows is needed" in said


def test_a_decoder_in_gguf_may_see_both_ways_without_a_window(tmp_path: Path) -> None:
    said = {"llama.attention.causal": False}
    with open_checkpoint(write_text_gguf(tmp_path / "m.gguf", TinyModel(), said)) as found:
        assert found.config.pooling == Pooling()
        assert found.config.heads.both_ways
        assert Role.OUTPUT not in {one.role for one in found.tensors}
    windowed = said | {"llama.attention.sliding_window": 7}
    error = error_of(write_text_gguf(tmp_path / "m.gguf", TinyModel(), windowed)) or ""
    assert "llama.attention.causal is False; true of a model with a sliding window" in error


def test_a_decoder_that_sees_both_ways_may_score_and_may_have_no_states(tmp_path: Path) -> None:
    model = encoder_model("qwen3_reranker")
    both_ways = model.config | {"is_causal": False}
    with open_checkpoint(write_model(model, tmp_path / "scorer", both_ways)) as found:
        assert found.config.pooling == Pooling("last", dense=(Dense(1),))
        assert found.config.heads.both_ways
    states = family_model("lfm2")
    error = error_of(write_model(states, tmp_path / "lfm2", states.config | {"is_causal": False}))
    assert "is_causal is False; true of a model whose layers keep a state" in (error or "")


def test_a_reranker_of_nvidia_divides_scores_by_its_temperature(tmp_path: Path) -> None:
    model = encoder_model("llama_both_ways")
    head = np.linspace(-1, 1, 48, dtype=np.float32)[None]
    trunk = {f"model.{name}": array for name, array in model.tensors.items()}
    model = replace(model, tensors=trunk | {"score.weight": head})
    said = {"model_type": "llama_bidirec", "pooling": "avg", "temperature": 4.0}
    said["architectures"] = ["LlamaBidirectionalForSequenceClassification"]
    config = {key: value for key, value in model.config.items() if key != "is_causal"} | said
    with open_checkpoint(write_model(model, tmp_path / "m", config)) as found:
        assert found.config.pooling == Pooling("mean", dense=(Dense(1),))
        dense = next(one for one in found.tensors if one.role is Role.DENSE)
        assert np.array_equal(np.frombuffer(dense.data, np.float32), head[0] / 4)
        text = of_checkpoint(found, Tokenizer.from_files(found.tokenizer))
        assert text.ranks
    for key, value in (("pooling", "colbert"), ("temperature", 0.0)):
        error = error_of(write_model(model, tmp_path / key, config | {key: value}))
        assert f"{key} is {value!r}" in (error or "")


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("relative_attention", False, "True"),
        ("conv_kernel_size", 3, "0 or None"),
        ("pos_att_type", "c2p", "'p2c|c2p'"),
        ("embedding_size", 24, "hidden_size, 48,"),
        ("attention_head_size", 16, "12"),
        ("position_buckets", 1, "-1, or from 2 to 597,"),
        ("max_relative_positions", "far", "a number"),
    ],
)
def test_other_attention_of_deberta_is_refused(
    key: str, value: object, accepted: str, tmp_path: Path
) -> None:
    model = encoder_model("deberta_v3")
    error = error_of(write_model(model, tmp_path, model.config | {key: value})) or ""
    assert f"{key} is {value!r}; {accepted} is needed" in error


def test_embeddings_of_distances_are_as_many_as_the_config_says(tmp_path: Path) -> None:
    model = encoder_model("deberta_v3")
    error = error_of(write_model(model, tmp_path, model.config | {"position_buckets": 8})) or ""
    assert "rel_embeddings.weight' has shape [32, 48]; [16, 48] is needed" in error


def test_scores_of_a_gguf_file_have_the_names_that_it_says(tmp_path: Path) -> None:
    model, names = encoder_model("distilbert_classifier"), ("NEGATIVE", "POSITIVE")
    labels = "bert.classifier.output_labels"

    def found(said: Mapping[str, Any], name: str = "distilbert_classifier") -> tuple[str, ...]:
        vocabulary = converted(word_piece(size=256))
        path = write_gguf(encoder_model(name), "bert", tmp_path / "m.gguf", vocabulary | said)
        with open_checkpoint(path) as one:
            text = of_checkpoint(one, Tokenizer.from_files(one.tokenizer))
            packed = write_as_packed(path, tmp_path / f"packed{len(list(tmp_path.iterdir()))}")
            with open_checkpoint(packed) as other:
                again = of_checkpoint(other, Tokenizer.from_files(other.tokenizer))
                assert again.labels == text.labels
            return text.labels

    assert found({}) == names
    assert found({labels: None}) == ("LABEL_0", "LABEL_1")
    assert found({}, "distilbert") == ()
    path = write_gguf(model, "bert", tmp_path / "m.gguf", {labels: ["one"]})
    assert f"{labels} is ['one']; 2, as there are scores, is needed" in (error_of(path) or "")


def test_matrices_of_one_row_may_be_vectors_in_gguf_files(tmp_path: Path, monkeypatch) -> None:
    whole = write_gguf(encoder_model("xlm_roberta_reranker"), "bert", tmp_path / "whole.gguf")
    add = gguf.GGUFWriter.add_tensor
    flattened = []

    def add_flat(writer: Any, name: str, values: np.ndarray) -> None:
        if name in ("token_types.weight", "cls.output.weight"):
            values = values.reshape(-1)
            flattened.append(name)
        add(writer, name, values)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_flat)
    flat = write_gguf(encoder_model("xlm_roberta_reranker"), "bert", tmp_path / "flat.gguf")
    assert len(flattened) == 2
    with open_checkpoint(whole) as one, open_checkpoint(flat) as other:
        assert one.config == other.config
        assert [(t.role, t.rows, t.cols, bytes(t.data)) for t in one.tensors] == [
            (t.role, t.rows, t.cols, bytes(t.data)) for t in other.tensors
        ]


@pytest.mark.parametrize("shape", [(), (299, 48), (301, 48)])
def test_the_table_of_positions_has_the_rows_that_the_config_says(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    model = encoder_model("roberta")
    name = "embeddings.position_embeddings.weight"
    model.tensors[name] = np.zeros(shape, np.float32)
    error = error_of(write_model(model, tmp_path / "m")) or ""
    assert f"model.safetensors: tensor {name!r} has shape {list(shape)}; max_position" in error


@pytest.mark.parametrize("name", ["gte", "jina_embeddings_v3", "nomic_bert"])
def test_other_positions_than_rotary_ones_are_refused(name: str, tmp_path: Path) -> None:
    model = encoder_model(name)
    for said, accepted in (("rotary", True), ("rope", True), ("alibi", False), ("absolute", False)):
        config = model.config | {"position_embedding_type": said}
        error = error_of(write_model(model, tmp_path / said, config))
        wanted = f"position_embedding_type is {said!r}; 'rope' or 'rotary' is needed"
        assert error is None if accepted else wanted in (error or "")


def test_a_classifier_with_dense_modules_is_refused(tmp_path: Path) -> None:
    path = write_model(encoder_model("bert_reranker"), tmp_path / "m")
    name_modules(path, "Transformer", "Pooling", "Dense", pooling="cls_token")
    (path / "2_Dense").mkdir()
    (path / "2_Dense" / "config.json").write_text('{"in_features": 48, "out_features": 8}')
    save_file(
        {"linear.weight": np.zeros((8, 48), np.float32), "linear.bias": np.zeros(8, np.float32)},
        path / "2_Dense" / "model.safetensors",
    )
    assert "modules.json lists 1 Dense modules, and the model is a classifier" in error_of(path)


NEW = PUBLISHED["gte_reranker"] | {
    "model_type": "new",
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_theta": 20000,
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}


def test_gte_as_its_makers_publish_it(tmp_path: Path) -> None:
    model = encoder_model("gte_reranker")
    named = {
        "new." + name.removeprefix("gte.") if name.startswith("gte.") else name: values
        for name, values in model.tensors.items()
    }
    new = FamilyModel("new", NEW, named)
    with (
        open_checkpoint(write_model(model, tmp_path / "gte")) as one,
        open_checkpoint(write_model(new, tmp_path / "new")) as other,
    ):
        (rope,) = other.config.ropes
        assert rope.theta == 160000
        assert rope.factors is not None
        # 12 dimensions of a head: each frequency is divided by 8^(2 / 12), too.
        assert np.allclose(rope.factors, np.full(6, 8 ** (2 / 12)))
        assert replace(other.config, ropes=one.config.ropes) == one.config
        assert [bytes(t.data) for t in one.tensors] == [bytes(t.data) for t in other.tensors]
    for field, value in (
        ("layer_norm_type", "rms_norm"),
        ("logn_attention_scale", True),
        ("rope_scaling", {"factor": 8.0, "type": "ntk", "mixed_b": 0.5}),
    ):
        path = write_model(new, tmp_path / field, NEW | {field: value})
        assert ("mixed_b" if field == "rope_scaling" else field) in (error_of(path) or "")


def test_the_longest_text_is_what_a_step_can_have() -> None:
    assert longest_text(None, None, 131072) == 65536
    assert longest_text(None, 512, 131072) == 512
    assert longest_text(40000, 512, 131072) == 40000
    with pytest.raises(SettingsError, match="max_model_len is 65537; accepted: at most 65536"):
        longest_text(65537, None, 131072)
