"""Directories of sentence-transformers: any modules.json, what its modules say, and dense heads."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.json_mutation import mutate_parts
from tests.fuzz.model_paths import PADDING, open_model, scratch, write_padded

SEPARATOR = b"\n\x00\n"
FILES = (
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
WEIGHTS = "2_Dense/model.safetensors"


@cache
def directory() -> Path:
    """A tiny BERT, whose files of these names are written again and again."""
    from tiny_embedder import write_embedder

    return write_embedder(scratch() / "sentences")


def one_input(data: bytes) -> None:
    """The files, one after the other, then the header of the dense head; empty: there is none."""
    parts = [*data.split(SEPARATOR, len(FILES)), *[b""] * (len(FILES) + 1)]
    for name, part in zip(FILES, parts, strict=False):
        (directory() / name).unlink(missing_ok=True)
        if part:
            (directory() / name).write_bytes(part)
    header = parts[len(FILES)]
    write_padded(directory() / WEIGHTS, len(header).to_bytes(8, "little") + header, PADDING[1])
    open_model(directory())


def seeds(folder: Path) -> Iterator[bytes]:
    """The directory, one without a dense head, and one of older versions."""
    from tiny_embedder import modules_of, write_embedder

    whole = write_embedder(folder / "whole")
    content = (whole / WEIGHTS).read_bytes()
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    parts = [(whole / name).read_bytes() for name in FILES]
    yield SEPARATOR.join([*parts, header])
    modules = json.dumps(modules_of("Transformer", "Pooling", "Normalize")).encode()
    yield SEPARATOR.join([modules, *parts[1:], header])
    old = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    yield SEPARATOR.join([modules, json.dumps(old).encode()])
    yield b"[]"


def mutate(data: bytes, random: Random) -> bytes:
    """One value of the texts."""
    return mutate_parts(data, SEPARATOR, random)


def words() -> Iterator[bytes]:
    """Keys and values that right files may have."""
    for key in (
        *("path", "type", "idx", "kwargs", "pooling_mode", "include_prompt", "default_prompt_name"),
        *("activation_function", "similarity_fn_name", "max_seq_length", "do_lower_case"),
    ):
        yield f'"{key}":'.encode()
    for text in ("LogitScore", "Normalize", "mean_sqrt_len_tokens", "../", "torch.nn.GELU"):
        yield text.encode()
    yield SEPARATOR
