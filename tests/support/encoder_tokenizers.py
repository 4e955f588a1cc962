"""Small tokenizers of encoders, trained here, and what the public converter makes of them."""

import json
import random
import unicodedata
from collections import Counter
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.processors import RobertaProcessing, TemplateProcessing

TEXT = (
    "the river rises slowly over wide fields and nobody counts the houses that it takes with it "
    "unbelievable playing plays player replay embedding embeddings ranked ranking query passage "
    "naïve café Ærø straße 東京 京都 пример текст 12 2024 3.14 can't won't e-mail C++ x=1; don't "
)
WORDS = TEXT.split()
CONTROL, NORMAL, UNKNOWN = 3, 1, 2


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of words, their parts, and characters of every kind."""
    rng = random.Random(seed)
    odd = "\t\n\r  \u00a0\u2003\u200b\ufeff\x00\x07'\"()[]{}<>#▁_-\u2013—…@€£🙂한글"
    odd += "\u0301\u0308İ\u017fﬁⅣ①ª\ufffd👩\u200d👧"
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(12)):
            kind = rng.randrange(6)
            if kind < 3:
                word = rng.choice(WORDS)
                parts.append(word.upper() if rng.random() < 0.1 else word)
            elif kind == 3:
                parts.append("".join(rng.choice(odd) for _ in range(rng.randrange(1, 5))))
            elif kind == 4:
                parts.append(rng.choice(["[SEP]", "[CLS] ", "</s>", "<s>", "##ing", "▁the", "[x]"]))
            else:
                codes = (rng.randrange(0x20, 0x3100) for _ in range(3))
                chars = (chr(code) for code in codes)
                parts.append("".join(c for c in chars if unicodedata.category(c) != "Cn"))
            if rng.random() < 0.7:
                parts.append(" " * rng.randrange(1, 3))
        texts.append("".join(parts))
    return texts


def _pieces(tokenizer: Tokenizer, size: int) -> list[str]:
    """Characters, the text's words and their most frequent parts, always the same.

    The library's trainer numbers pieces in an order that differs from process to process.
    """
    text = tokenizer.normalizer.normalize_str(TEXT)
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    parts = Counter(
        ("##" if begin else "") + word[begin:end]
        for word in words
        for begin in range(len(word))
        for end in range(begin + 1, len(word) + 1)
    )
    single = [part for part in parts if len(part.removeprefix("##")) == 1]
    whole = sorted(set(words) - set(single))
    frequent = sorted(parts.keys() - {*single, *whole}, key=lambda part: (-parts[part], part))
    return [*sorted(single), *whole, *frequent][:size]


@cache
def word_piece(lower: bool = True, size: int = 400) -> Tokenizer:
    """As bert-base's tokenizer.json, with a vocabulary of a few hundred."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces = [*special, *_pieces(tokenizer, size - len(special))]
    numbered = {piece: number for number, piece in enumerate(pieces)}
    tokenizer.model = WordPiece(numbered, unk_token="[UNK]")
    tokenizer.add_special_tokens(special)
    ids = [(text, tokenizer.token_to_id(text)) for text in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@cache
def mpnet_words() -> Tokenizer:
    """As MPNet's tokenizer.json: BERT's words, RoBERTa's special tokens and pairs."""
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    tokenizer = Tokenizer.from_str(word_piece().to_str())
    words = [piece for piece in tokenizer.get_vocab() if not piece.startswith("[")]
    pieces = [*special[:4], *sorted(words), special[4]]
    numbered = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(WordPiece(numbered, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([*special[:4], AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@cache
def deberta_pieces() -> Tokenizer:
    """As DeBERTa V3's tokenizer.json, without its map of characters."""
    tokenizer = Tokenizer.from_str(unigram().to_str())
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    pieces = [(piece, 0.0) for piece in special] + [tuple(one) for one in vocabulary[4:]]
    tokenizer = Tokenizer(Unigram([*pieces, ("[MASK]", 0.0)], unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
            normalizers.NFC(),
            normalizers.Strip(left=False, right=True),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    tokenizer.add_special_tokens([*special, "[MASK]"])
    tokenizer.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@cache
def eurobert_bytes() -> Tokenizer:
    """As EuroBERT's tokenizer.json: Llama 3's bytes, a token before and one behind each text."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    tokenizer = Tokenizer(BPE())
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    words += r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: number for number, piece in enumerate([*special, *alphabet, "th", "the"])}
    tokenizer.model = BPE(pieces, [("t", "h"), ("th", "e")], ignore_merges=True)
    tokenizer.add_special_tokens(special)
    first, last = special[:2]
    tokenizer.post_processor = TemplateProcessing(
        f"{first} $A {last}", f"{first} $A {last} $B:1 {last}:1", [(first, 0), (last, 1)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@cache
def unigram() -> Tokenizer:
    """As XLM-RoBERTa's tokenizer.json, without its map of characters."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=220, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 3 + WORDS, trainer)
    # The trainer's sums, and with them the order of pieces, differ from process to process.
    trained = json.loads(tokenizer.to_str())["model"]["vocab"][len(special) :]
    scores = sorted((-round(score, 3), piece) for piece, score in trained)
    pieces = [(piece, 0.0) for piece in special] + [(piece, -score) for score, piece in scores]
    tokenizer.model = Unigram(pieces, unk_id=special.index("<unk>"))
    ids = [(text, tokenizer.token_to_id(text)) for text in ("<s>", "</s>")]
    tokenizer.post_processor = TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ids)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def converted(tokenizer: Tokenizer) -> dict[str, Any]:
    """The metadata that the public converter writes of one of these."""
    state = json.loads(tokenizer.to_str())["model"]
    if state["type"] == "WordPiece":
        return _converted_words(state["vocab"])
    pieces = state["vocab"]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN] + [NORMAL] * (len(pieces) - 4)
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [text for text, _ in pieces],
        "tokenizer.ggml.scores": [float(score) for _, score in pieces],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.cls_token_id": 0,
    }


def _converted_words(vocab: dict[str, int]) -> dict[str, Any]:
    def phantom(text: str) -> str:
        if text.startswith("[") and text.endswith("]"):
            return text
        return text[2:] if text.startswith("##") else "▁" + text

    tokens = [text for text, _ in sorted(vocab.items(), key=lambda item: item[1])]
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [phantom(text) for text in tokens],
        "tokenizer.ggml.token_type": [CONTROL if text in special else NORMAL for text in tokens],
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.unknown_token_id": vocab["[UNK]"],
        "tokenizer.ggml.seperator_token_id": vocab["[SEP]"],
        "tokenizer.ggml.padding_token_id": vocab["[PAD]"],
        "tokenizer.ggml.cls_token_id": vocab["[CLS]"],
        "tokenizer.ggml.mask_token_id": vocab["[MASK]"],
    }
