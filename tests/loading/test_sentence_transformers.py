"""What a sentence-transformers directory says, and what it may not say."""

from pathlib import Path
from typing import Any

import pytest

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.sentences import DenseModule, SentenceModel
from lanewise.loading.pooling.sentence_transformers import files_of, read_sentence_model
from tiny_embedder import modules_of, write_files

MEAN = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}


def write(folder: Path, **files: Any) -> Path:
    """A directory as its makers save it, with changes; None leaves a file out."""
    kinds = files.pop("kinds", ("Transformer", "Pooling", "Normalize"))
    contents = {
        "modules.json": modules_of(*kinds),
        "1_Pooling/config.json": MEAN,
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        "config_sentence_transformers.json": {"__version__": {"pytorch": "1.8.1"}},
    } | files
    return write_files(folder, {name: one for name, one in contents.items() if one is not None})


def test_a_directory_says_how_vectors_are_made(tmp_path) -> None:
    found = read_sentence_model(write(tmp_path))
    assert found == SentenceModel(pooling="mean", normalize=True, max_tokens=256)
    assert found.prepare("  A b\n") == "A b"


def test_a_directory_without_modules_is_none(tmp_path) -> None:
    assert read_sentence_model(write(tmp_path, **{"modules.json": None})) is None


def test_prompts_lower_case_and_a_dense_head(tmp_path) -> None:
    dense = {
        "in_features": 384,
        "out_features": 64,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    config = {
        "prompts": {"query": "query: ", "document": ""},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
        "model_type": "SentenceTransformer",
    }
    folder = write(
        tmp_path,
        kinds=("Transformer", "Pooling", "Dense"),
        **{
            "1_Pooling/config.json": {"pooling_mode_lasttoken": True, "include_prompt": True},
            "2_Dense/config.json": dense,
            "sentence_bert_config.json": {"max_seq_length": None, "do_lower_case": True},
            "config_sentence_transformers.json": config,
        },
    )
    found = read_sentence_model(folder)
    assert found == SentenceModel(
        pooling="last",
        normalize=False,
        dense=(DenseModule(folder / "2_Dense", 384, 64, False, "identity"),),
        lower_case=True,
        prompts={"query": "query: ", "document": ""},
        default_prompt="query",
        similarity="dot",
    )
    assert found.prepare("ÄB ") == "äb"


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),  # what follows makes it length 1
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_every_kind_of_pooling(tmp_path, pooling, wanted) -> None:
    found = read_sentence_model(write(tmp_path, **{"1_Pooling/config.json": pooling}))
    assert found is not None
    assert found.pooling == wanted


def test_what_is_written_says_the_same(tmp_path) -> None:
    dense = DenseModule(tmp_path / "2_Dense", 8, 4, True, "gelu")
    for pooling in ("mean", "cls", "last"):
        said = SentenceModel(
            pooling=pooling,
            normalize=pooling != "cls",
            dense=(dense,),
            max_tokens=None if pooling == "last" else 99,
            lower_case=pooling == "mean",
            prompts={"query": "q: "},
            default_prompt="query" if pooling == "mean" else None,
            similarity="dot",
        )
        write_files(tmp_path, files_of(said))
        assert read_sentence_model(tmp_path) == said


POOLING, CONFIG = "1_Pooling/config.json", "config_sentence_transformers.json"
REFUSED = [
    ({POOLING: {"pooling_mode_max_tokens": True}}, "the pooling is max_tokens; accepted: one of"),
    ({POOLING: {"pooling_mode_weightedmean_tokens": True}}, "the pooling is weightedmean_tokens"),
    ({POOLING: MEAN | {"pooling_mode_cls_token": True}}, "is mean_tokens and cls_token; accepted"),
    ({POOLING: {}}, "the pooling is none"),
    ({POOLING: MEAN | {"shape": 3}}, "shape is 3; unknown field that may change the answers"),
    (
        {POOLING: MEAN | {"include_prompt": False}, CONFIG: {"prompts": {"a": "x"}}},
        "include_prompt is False; true: prompts are pooled with their texts is needed",
    ),
    ({"kinds": ("Transformer", "Pooling", "LSTM")}, "the modules are Transformer, Pooling, LSTM"),
    ({"modules.json": [{"path": "0_Transformer", "type": "x.Transformer"}]}, "the modules are"),
    ({"modules.json": [{"path": "../x", "type": "x.Transformer"}]}, "a folder in this one"),
    ({"modules.json": {}}, "a list of objects is needed"),
    ({CONFIG: {"default_prompt_name": "query"}}, "one of no prompts is needed"),
    ({CONFIG: {"prompts": {"a": 1}}}, "an object of strings"),
    ({CONFIG: {"similarity_fn_name": "maxsim"}}, "one of cosine, dot, euclidean, manhattan"),
    ({"sentence_bert_config.json": {"max_seq_length": 0}}, "max_seq_length is 0"),
    ({"sentence_bert_config.json": {"tokenizer_args": {"x": 1}}}, "unknown field that may change"),
    ({"sentence_bert_config.json": {"scale": 2}}, "scale is 2; unknown field that may change"),
]


@pytest.mark.parametrize(("files", "message"), REFUSED)
def test_what_is_not_known_is_refused_by_name(tmp_path, files, message) -> None:
    with pytest.raises(ModelFileError, match=message):
        read_sentence_model(write(tmp_path, **files))


def test_a_folder_that_links_to_itself_is_refused(tmp_path) -> None:
    (tmp_path / "1_Pooling").symlink_to("1_Pooling")
    files = {"modules.json": modules_of("Transformer", "Pooling"), "1_Pooling/config.json": None}
    with pytest.raises(ModelFileError, match="1_Pooling"):
        read_sentence_model(write(tmp_path, **files))


def test_an_activation_is_one_that_the_model_has(tmp_path) -> None:
    dense = {"in_features": 4, "out_features": 2, "activation_function": "torch.nn.Softmax"}
    files = {"kinds": ("Transformer", "Pooling", "Dense"), "2_Dense/config.json": dense}
    with pytest.raises(
        ModelFileError, match=r"activation_function is .torch\.nn\.Softmax.; one of"
    ):
        read_sentence_model(write(tmp_path, **files))
