"""Random strings for each vocabulary of bytes: the ids that the tokenizers library gives.

Its tokenizers are built here from a vocabulary, its merges and the splits that the models' authors
published; Lanewise finds the splits by the name in a GGUF file.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiktoken_vocab
from tiny_tokenizers import gguf_files
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from data_files import data
from lanewise.loading.files.gguf import GgufFile
from lanewise.text.tokenizer import Tokenizer
from topics import cases

KEY = "tokenizer.ggml."
USER_DEFINED = 4
WORDS = (
    *("hello", " world", "The", " quick", "ing", "'s", "'LL", "I'm", "don't", "한국", "カタ"),
    *("    ", "\n\n", " \n", "…", "——", "e\u0301", "\u200b", "\ufeff", "\u0800"),
)
# First and last of letters of several kinds, digits and signs among them.
RANGES = (
    *((32, 126), (32, 126), (0xA1, 0x24F), (0x370, 0x5FF), (0x4E00, 0x9FA5)),
    *((0x250, 0xD7FF), (0xE000, 0x10FFFF), (0x1F300, 0x1F650)),
)


def bytes_behind(*splits: str | pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Splits one after the other, expressions or the library's, then bytes as letters."""
    made = [
        pre_tokenizers.Split(Regex(one), "isolated") if isinstance(one, str) else one
        for one in splits
    ]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*made, last])


DIGITS = pre_tokenizers.Digits(individual_digits=True)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "gpt-2": GPT2,
    "starcoder": pre_tokenizers.Sequence([DIGITS, GPT2]),
    "deepseek-coder": bytes_behind(
        *("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGITS)
    ),
    "llama-bpe": bytes_behind(LLAMA3),
    "qwen2": bytes_behind(LLAMA3.replace("{1,3}", "")),
}
TIKTOKEN = {"llama-bpe": "llama3.tokenizer.model", "qwen2": "qwen.tiktoken"}


def strings(count: int) -> list[str]:
    chosen = random.Random(11)
    parts = [
        lambda: chosen.choice(WORDS),
        lambda: chosen.choice(" \n\t\r"),
        lambda: str(chosen.randrange(10 ** chosen.randrange(1, 9))),
        *(lambda of=of: chr(chosen.randint(*of)) for of in RANGES),
    ]
    return [
        "".join(chosen.choice(parts)() for _ in range(chosen.randrange(1, 24)))
        for _ in range(count)
    ]


def vocabulary(name: str) -> dict[str, Any]:
    if name in TIKTOKEN:
        return dict(tiktoken_vocab.metadata(data(f"tokenizers/{TIKTOKEN[name]}"), name))
    file = GgufFile(data(f"tokenizers/ggml-vocab-{name}.gguf"))
    metadata = dict(file.metadata)
    file.close()
    return metadata


def library_of(metadata: dict[str, Any], splits: pre_tokenizers.PreTokenizer) -> Library:
    tokens, types = list(metadata[KEY + "tokens"]), metadata.get(KEY + "token_type", ())
    merges = [tuple(merge.split(" ")) for merge in metadata[KEY + "merges"]]
    library = Library(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    library.pre_tokenizer = splits
    added = [token for token, kind in zip(tokens, types, strict=False) if int(kind) == USER_DEFINED]
    library.add_tokens([AddedToken(token, normalized=False) for token in added])
    return library


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITS)
def test_random_strings_have_the_ids_of_the_library(name: str) -> None:
    metadata = vocabulary(name)
    library = library_of(metadata, SPLITS[name])
    tokenizer = Tokenizer.from_files(gguf_files(metadata))
    if name == "qwen2":
        library.normalizer = normalizers.NFC()
    for text in strings(cases(500, 20_000)):
        wanted = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_bos=False, parse_special=False) == wanted, text
