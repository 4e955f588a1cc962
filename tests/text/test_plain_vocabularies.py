"""Directories with tokenizer.model, or vocab.json and merges.txt, and no tokenizer.json."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from plain_files import KEY, field, sentencepiece, write_byte_level, write_sentencepiece
from tiny_tokenizers import byte_level_metadata, gguf_files, sentencepiece_metadata

from data_files import data
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.files.gguf import GgufFile
from lanewise.loading.vocabulary.tokenizer_files import read_tokenizer_files
from lanewise.text.tokenizer import Tokenizer


def strings(count: int) -> list[str]:
    """Random texts of words, spaces, control tokens and letters of all kinds."""
    chosen = random.Random(4)
    parts = [
        "hello",
        " world",
        "he",
        "  ",
        "\n",
        "<|user|>",
        "<|end|>",
        "<",
        "|",
        "é",
        "語",
        "🙂",
        "0",
    ]
    return ["".join(chosen.choices(parts, k=chosen.randrange(12))) for _ in range(count)]


def compare(folder: Path, metadata: dict, texts: list[str]) -> Tokenizer:
    size = len(metadata[KEY + "tokens"])
    found = Tokenizer.from_files(read_tokenizer_files(folder, size))
    expected = Tokenizer.from_files(gguf_files(metadata))
    for text in texts:
        for special in (False, True):
            ids = expected.encode(text, add_bos=True, parse_special=special)
            assert found.encode(text, add_bos=True, parse_special=special) == ids, text
            assert found.decode(ids) == expected.decode(ids)
    assert found.special_tokens["eos_token"] == expected.special_tokens["eos_token"]
    return found


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_those_of_gguf(tmp_path: Path, prefix: bool) -> None:
    metadata = sentencepiece_metadata(add_space_prefix=prefix)
    folder = write_sentencepiece(tmp_path / "m", metadata, chat_template="{{ bos_token }}A")
    tokenizer = compare(folder, metadata, strings(300))
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render([{"role": "user", "content": "B"}]) == "<s>A"


def test_merges_are_those_of_gguf(tmp_path: Path) -> None:
    metadata = byte_level_metadata(add_bos_token=False)
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}
    n_plain = metadata[KEY + "tokens"].index("<|begin|>")
    folder = write_byte_level(tmp_path / "m", metadata, n_plain, **config)
    compare(folder, metadata, strings(300))


def test_further_ends_and_sampling_are_those_of_the_generation_config(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata()
    folder = write_sentencepiece(tmp_path / "m", metadata)
    end = metadata[KEY + "tokens"].index("<|end|>")
    about = {"eos_token_id": [end, 2], "temperature": 0.6}
    (folder / "generation_config.json").write_text(json.dumps(about))
    files = read_tokenizer_files(folder, len(metadata[KEY + "tokens"]))
    assert {2, end} <= Tokenizer.from_files(files).eos_ids
    assert files.gguf is not None
    assert files.gguf["general.sampling.temp"] == 0.6


def test_tokenizer_json_goes_first(tmp_path: Path) -> None:
    folder = write_sentencepiece(tmp_path / "m", sentencepiece_metadata())
    (folder / "tokenizer.json").write_text("{}")
    assert read_tokenizer_files(folder, 300).gguf is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no pieces"),
        (b"IQ== 0\nIg== 1\n", "not a SentencePiece model"),
        (sentencepiece(sentencepiece_metadata())[:-5], "not a SentencePiece model"),
        (field(1, b"\x08"), "not a SentencePiece model"),
        (field(1, field(1, b"\xff")), "not a SentencePiece model"),
        (field(1, field(1, b"a")) + field(2, field(3, 4)), "model type 4; unigram"),
        (b"\x80" * 12, "not a SentencePiece model"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        read_tokenizer_files(tmp_path, 300)
    assert message in str(caught.value)
    assert "tokenizer.model" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", '{"a": "b"}', "texts with their numbers are needed"),
        ("vocab.json", '{"a": 1000000000}', "1000000000 is the number of a token"),
        ("tokenizer_config.json", '{"tokenizer_class": "BloomTokenizer"}', "'BloomTokenizer'"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"900000000": {"content": "x"}}}',
            "added token 'x' has number 900000000",
        ),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": 3}}', "'5' needs a content"),
        ("added_tokens.json", '{"x": "y"}', "'x': 'y'; a number is needed"),
    ],
)
def test_vocabularies_that_cannot_be_used_are_explained(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    folder = write_byte_level(tmp_path / "m", byte_level_metadata(), 266)
    (folder / name).write_text(content)
    with pytest.raises(ModelFileError) as caught:
        read_tokenizer_files(folder, 300)
    assert message in str(caught.value)


def test_a_real_vocabulary(tmp_path: Path) -> None:
    file = GgufFile(data("tokenizers/ggml-vocab-phi-3.gguf"))
    metadata = dict(file.metadata)
    folder = write_sentencepiece(tmp_path / "m", metadata)
    strings = data("tokenizers/ggml-vocab-phi-3.gguf.inp").read_text()
    texts = strings.split("__ggml_vocab_test__")
    compare(folder, metadata, texts)
    file.close()


def test_templates_are_those_of_other_directories(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    metadata = sentencepiece_metadata()
    folder = write_sentencepiece(tmp_path / "m", metadata, chat_template=named)
    files = read_tokenizer_files(folder, len(metadata[KEY + "tokens"]))
    assert files.gguf is not None
    assert files.gguf["tokenizer.chat_template.tool_use"] == "B"
    template = Tokenizer.from_files(files).chat_template
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}], tools=[]) == "B"
