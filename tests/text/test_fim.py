"""Tokens around gaps, by their names and by GGUF's metadata."""

import pytest
from tiny_tokenizers import byte_level_metadata

from lanewise.loading.base.checkpoint import TokenizerFiles
from lanewise.text.fim import FimTokens, find_fim
from lanewise.text.tokenizer import Tokenizer

QWEN = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>"]
QWEN += ["<|file_sep|>", "<|endoftext|>"]


def found_in(names, **given):
    return find_fim({name: i for i, name in enumerate(names)}.get, given)


@pytest.mark.parametrize(
    ("names", "prompt"),
    [
        (QWEN, [0, 7, 8, 2, 9, 1]),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], [0, 7, 8, 1, 9, 2]),
        (["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"], [0, 7, 8, 1, 9, 2]),
        (
            ["<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"],
            [0, 7, 8, 1, 9, 2],
        ),
        (["[PREFIX]", "[MIDDLE]", "[SUFFIX]"], [2, 9, 0, 7, 8]),
    ],
)
def test_families_by_their_names(names, prompt):
    found = found_in(names)
    assert found is not None
    assert found.prompt([7, 8], [9]) == prompt


def test_what_is_around_it():
    assert found_in(QWEN) == FimTokens(0, 2, 1, 4, 5, frozenset({3, 4, 5, 6}))
    assert found_in(["<fim_prefix>", "<fim_suffix>"]) is None
    assert found_in(["<s>", "[SUFFIX]"]) is None
    assert found_in([]) is None


def test_metadata_of_gguf_counts_more_than_names():
    given = {"fim_pre_token_id": 11, "suffix_token_id": 12, "fim_mid_token_id": 13}
    assert found_in(QWEN, **given, fim_rep_token_id=14).prompt([7], [8]) == [11, 7, 12, 8, 13]
    assert found_in([], **given) == FimTokens(11, 12, 13)
    assert found_in([], fim_pre_token_id=11, fim_suf_token_id=12) is None
    [plain] = [byte_level_metadata()["tokenizer.ggml.bos_token_id"]]
    named = {f"tokenizer.ggml.{key}": plain + i for i, key in enumerate(given, 1)}
    metadata = byte_level_metadata() | named
    files = TokenizerFiles("x", len(metadata["tokenizer.ggml.tokens"]), gguf=metadata)
    assert Tokenizer.from_files(files).fim == FimTokens(plain + 1, plain + 2, plain + 3)
