"""How text is cut before merging, by the names that GGUF files have for it.

The pieces in ``tests/golden/pre_tokenizers.json`` are those of llama.cpp (in llama-cpp-python
0.3.36) where it does not simplify a vocabulary's own expression, and of the expression in Python's
``regex`` where it does.
"""

import json
from pathlib import Path

import pytest
from tiny_tokenizers import byte_level_metadata, gguf_files
from tokenizers import Regex, pre_tokenizers

from lanewise.text.pre_tokenizers import PRE_TOKENIZERS
from lanewise.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden/pre_tokenizers.json"
FOUND = json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_every_name_has_its_pieces():
    names = [name for entry in FOUND["ways"] for name in entry["names"]]
    assert sorted(names) == sorted(PRE_TOKENIZERS)


def pre_tokenizer_of(tokenizer: Tokenizer, name: str) -> pre_tokenizers.PreTokenizer:
    """The library's; of one that runs in a process of its own what it has there."""
    if not tokenizer.is_limited:
        return tokenizer._tokenizer.pre_tokenizer
    patterns = map(Regex, PRE_TOKENIZERS[name].patterns)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(one, "isolated") for one in patterns])


@pytest.mark.parametrize("way", FOUND["ways"], ids=lambda way: way["names"][0])
def test_pieces(way):
    for name in way["names"]:
        tokenizer = Tokenizer.from_files(gguf_files(byte_level_metadata(pre=name)))
        for text, pieces in zip(FOUND["texts"], way["pieces"], strict=True):
            cut = pre_tokenizer_of(tokenizer, name).pre_tokenize_str(text)
            assert [text[start:end] for _, (start, end) in cut] == pieces, name
        # "é" as two characters: one where a vocabulary's own tokenizer composes them.
        n_bytes = len(tokenizer.encode("e\u0301", add_bos=False, parse_special=False))
        assert n_bytes == (2 if way["composes"] else 3), name
