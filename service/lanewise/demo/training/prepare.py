"""Turns an archive of public-domain books into a tokenizer and token ids for training.

    python prepare.py books.tar.xz DATA_DIR

The archive holds plain-text books, one per file, without licence headers. DATA_DIR receives
tokenizer.json, train.npy, validation.npy (uint16 token ids) and heldout/*.txt, the test text.
"""

from __future__ import annotations

import argparse
import random
import re
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SEED = 7
VOCAB_SIZE = 4096
SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>")
BEGIN, END = 0, 1
PASSAGE = 12  # paragraphs that make one document

# Never trained on, in whole: test text for this model.
HELD_OUT = ("wind-in-the-willows", "prisoner-of-zenda", "invisible-man")

# Llama 3's pre-tokenizer, so that GGUF files can name it ("llama-bpe").
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The one spelling that every book is brought to before styles are applied.
PLAIN = str.maketrans(
    {
        "\ufeff": None,
        "\r": None,
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2014": "--",
        "\u2013": "-",
        "\u2026": "...",
    }
)
STYLES = ("plain", "wrapped", "curly", "wrapped curly")
STYLE_WEIGHTS = (0.4, 0.2, 0.2, 0.2)


def read_books(archive: Path) -> dict[str, str]:
    """Return the text of every .txt file of the archive by its name."""
    books = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if not member.isfile() or name.suffix != ".txt":
                continue
            file = tar.extractfile(member)
            if file is not None:
                books[name.stem] = file.read().decode("utf-8")
    if not books:
        raise SystemExit(f"{archive}: no .txt files")
    return dict(sorted(books.items()))


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is running text rather than a heading, list or note."""
    return (
        len(paragraph) > 60
        and sum(c.islower() for c in paragraph) > 0.6 * len(paragraph)
        and not re.match(r"CHAPTER|Chapter|\[|\*", paragraph)
        and "Gutenberg" not in paragraph
    )


def paragraphs(book: str) -> list[str]:
    """Return the prose of a book, one line per paragraph, straight quotes, no markup."""
    text = re.sub(r"_([^_\n]{1,200})_", r"\1", book.translate(PLAIN))
    lines = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
    return [line for line in lines if is_prose(line)]


def curly(text: str) -> str:
    """Return the text with typographic quotes, dashes and ellipses."""
    text = re.sub(r"(^|[\s(\[-])\"", "\\1\u201c", text).replace('"', "\u201d")
    text = re.sub(r"(^|[\s(\[\u201c-])'(?=\w)", "\\1\u2018", text).replace("'", "\u2019")
    return text.replace("--", "\u2014").replace("...", "\u2026")


def styled(passage: list[str], style: str) -> str:
    """Return a passage as some editions would print it."""
    if "curly" in style:
        passage = [curly(paragraph) for paragraph in passage]
    if "wrapped" in style:
        passage = [textwrap.fill(p, width=72, break_on_hyphens=False) for p in passage]
    return "\n\n".join(passage)


def passages(book: str, rng: random.Random) -> Iterator[str]:
    """Yield the documents of a book, each in a style of its own."""
    prose = paragraphs(book)
    for start in range(0, len(prose), PASSAGE):
        (style,) = rng.choices(STYLES, STYLE_WEIGHTS)
        yield styled(prose[start : start + PASSAGE], style)


def train_tokenizer(documents: list[str], vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer trained on the documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", BEGIN)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    """Return the ids of all documents, one after the other, each begun and ended."""
    encoded = tokenizer.encode_batch(documents)
    return np.concatenate([np.array([*item.ids, END], np.uint16) for item in encoded])


def main() -> None:
    """Prepare the data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("archive", type=Path, help="tar file of plain-text books")
    parser.add_argument("data", type=Path, help="directory to write")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    arguments = parser.parse_args()

    books = read_books(arguments.archive)
    held_out = [name for name in books if any(title in name for title in HELD_OUT)]
    if len(held_out) != len(HELD_OUT):
        raise SystemExit(f"{arguments.archive}: held-out books {HELD_OUT}, found {held_out}")
    rng = random.Random(arguments.seed)
    training = [p for name in books if name not in held_out for p in passages(books[name], rng)]
    validation = [p for name in held_out for p in passages(books[name], rng)]
    rng.shuffle(training)

    texts = arguments.data / "heldout"
    texts.mkdir(parents=True, exist_ok=True)
    for name in held_out:
        (texts / f"{name}.txt").write_text("\n".join(paragraphs(books[name])), encoding="utf-8")
    tokenizer = train_tokenizer(training, arguments.vocab_size)
    tokenizer.save(str(arguments.data / "tokenizer.json"))
    for split, documents in (("train", training), ("validation", validation)):
        ids = encode(tokenizer, documents)
        np.save(arguments.data / f"{split}.npy", ids)
        print(f"{split}: {len(documents)} passages, {len(ids)} tokens")


if __name__ == "__main__":
    main()
