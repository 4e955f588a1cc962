"""Tokenizers of Hugging Face directories: any tokenizer.json and tokenizer_config.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.loading.base.json_files import parse_object
from tests.fuzz.json_mutation import mutate_parts
from tests.fuzz.model_paths import build_tokenizer
from tests.fuzz.reader import accept

SEPARATOR = b"\n\x00\n"
VOCAB_SIZE = 400


def one_input(data: bytes) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json, the last two if given."""
    parts = [*data.split(SEPARATOR, 2), b"", b""]
    try:
        json_files = {
            name: parse_object(part, name)
            for name, part in zip(
                ("tokenizer_config.json", "generation_config.json"), parts[1:], strict=False
            )
            if part
        }
        text = parts[0].decode("utf-8", "replace")
        files = TokenizerFiles(Path("m"), VOCAB_SIZE, None, json_files, {"tokenizer.json": text})
        build_tokenizer(files)
    except ModelFileError as error:
        accept(error)


def seeds(folder: Path) -> Iterator[bytes]:
    """Small tokenizers of each kind, with what real files have around them."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    from hostile_tokenizers import HOSTILE, written
    from tiny_models import FAMILIES, tiny_model, write_hf

    directory = write_hf(tiny_model(FAMILIES[0]), folder / "hf")
    config = (directory / "tokenizer_config.json").read_bytes()
    stops = (directory / "generation_config.json").read_bytes()
    yield (directory / "tokenizer.json").read_bytes() + SEPARATOR + config + SEPARATOR + stops
    pieces = {"<unk>": 0, "\u2581": 1, "a": 2, "b": 3, "ab": 4, "<0x0A>": 5, "</s>": 6}
    bpe = Tokenizer(models.BPE(pieces, [("a", "b")], unk_token="<unk>", byte_fallback=True))
    bpe.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bpe.add_special_tokens(["</s>", "<|im_end|>"])
    yield bpe.to_str().encode() + SEPARATOR + json.dumps({"eos_token": "</s>"}).encode()
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581a", -1.0), ("b", -2.0)], 0, False))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    unigram.decoder = decoders.Metaspace()
    yield unigram.to_str().encode()
    yield from (written(changes).encode() for changes, _ in HOSTILE.values())
    word = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    word.pre_tokenizer = pre_tokenizers.Split(" ?\\w+", "isolated")
    word.decoder = decoders.ByteFallback()
    yield word.to_str().encode()


def mutate(data: bytes, random: Random) -> bytes:
    """One value of the texts."""
    return mutate_parts(data, SEPARATOR, random)


def words() -> Iterator[bytes]:
    """Types that parts may have."""
    names = "BPE Unigram WordLevel WordPiece ByteLevel Metaspace Sequence Split Replace Prepend"
    names += " Lowercase NFC NFKC Strip StripAccents Precompiled Digits Punctuation Whitespace"
    names += " ByteFallback Fuse BertNormalizer TemplateProcessing UnicodeScripts CTC FixedLength"
    for name in names.split():
        yield f'"type":"{name}"'.encode()
    for text in ("null", "true", "[]", "{}", "-1", "4294967295", '"String":', '"Regex":', '""'):
        yield text.encode()
    yield SEPARATOR
