"""Exactness on real vocabularies: the ids that each model's own tokenizer gives."""

from __future__ import annotations

import importlib.util

import pytest
import tiktoken_vocab
from tiny_tokenizers import from_directory, gguf_files

import topics
from data_files import data
from lanewise.loading.base.checkpoint import TokenizerFiles
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.files.gguf import GgufFile
from lanewise.text.tokenizer import Tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"


def cases(name: str) -> list[tuple[str, list[int]]]:
    file = data(f"tokenizers/ggml-vocab-{name}.gguf.inp")
    texts = file.read_bytes().decode().split(SEPARATOR)
    lines = file.with_suffix(".out").read_text().split("\n")
    assert len(texts) == len(lines)
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=True)]


def check(tokenizer: Tokenizer, name: str) -> None:
    for text, ids in cases(name):
        assert tokenizer.encode(text, add_bos=False, parse_special=False) == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["gpt-2", "starcoder", "deepseek-coder", "llama-spm", "phi-3"])
def test_gguf_vocabularies(name: str) -> None:
    file = GgufFile(data(f"tokenizers/ggml-vocab-{name}.gguf"))
    check(Tokenizer.from_files(gguf_files(file.metadata)), name)
    file.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"), [("llama-bpe", "llama3.tokenizer.model"), ("qwen2", "qwen.tiktoken")]
)
def test_tiktoken_vocabularies(name: str, file: str) -> None:
    metadata = tiktoken_vocab.metadata(data(f"tokenizers/{file}"), name)
    check(Tokenizer.from_files(gguf_files(metadata)), name)


@pytest.mark.parametrize(
    ("name", "file"), [("stories260K-hf", "stories260K-f32"), ("stories3M-hf", "stories3M-f16")]
)
def test_gguf_and_directory_of_one_model_agree(name: str, file: str) -> None:
    with (
        open_checkpoint(data(f"models/{name}")) as a,
        open_checkpoint(data(f"models/{file}.gguf")) as b,
    ):
        hf, gg = Tokenizer.from_files(a.tokenizer), Tokenizer.from_files(b.tokenizer)
    assert (hf.bos_id, hf.adds_bos, hf.vocab_size) == (gg.bos_id, gg.adds_bos, gg.vocab_size)
    assert hf.eos_ids == {1, 2}  # generation_config.json lists BOS too
    assert gg.eos_ids == {2}
    text = data("text/tinystories_val_yuninxia.txt").read_text()[:20_000]
    texts = [text, *text.split("\n")[:40], *(text for text, _ in cases("phi-3"))]
    for text in texts:
        ids = hf.encode(text, add_bos=True, parse_special=True)
        assert ids == gg.encode(text, add_bos=True, parse_special=True)
        assert hf.decode(ids) == gg.decode(ids)


MINIMIND_CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "你好 <b>world</b>  !"},
]


@pytest.mark.reference
@pytest.mark.parametrize(
    "name",
    ["tokenizers/minimind", "models/books7M", "models/stories260K-hf", "models/stories3M-hf"],
)
def test_directories_encode_as_transformers_does(name: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        topics.skip("reference", "transformers is not installed")
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(data(name))
    tokenizer = Tokenizer.from_files(from_directory(data(name)))
    for text, _ in cases("qwen2"):
        if name.endswith("-hf") and text.startswith(" "):
            continue  # transformers 5 rebuilds such tokenizers without SentencePiece's second space
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert ids == reference.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert tokenizer.encode(text, add_bos=True, parse_special=True) == reference.encode(text)
    if reference.chat_template is None:
        return
    chat = reference.apply_chat_template(
        MINIMIND_CHAT, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.encode_chat(MINIMIND_CHAT) == chat


def test_minimind() -> None:
    files: TokenizerFiles = from_directory(data("tokenizers/minimind"))
    tokenizer = Tokenizer.from_files(files)
    assert tokenizer.eos_ids == {0, 2}  # <|endoftext|> by convention, <|im_end|> by its config
    assert not tokenizer.adds_bos
    assert tokenizer.chat_template is not None
    for text, _ in cases("qwen2"):
        ids = tokenizer.encode(text, add_bos=True, parse_special=False)
        assert tokenizer.decode(ids) == text
    ids = tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>"}])
    assert ids.count(2) == tokenizer.decode(ids, skip_special=False).count("<|im_end|>") - 1
