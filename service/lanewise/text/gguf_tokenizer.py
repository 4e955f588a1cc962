"""Builds a tokenizer from GGUF metadata: byte-level BPE and SentencePiece vocabularies."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.loading.vocabulary.gguf_text import PREFIX, TEMPLATE, TokenType
from lanewise.text.backend import Backend, Library, build, end_of_turn_ids
from lanewise.text.fim import GGUF_KEYS
from lanewise.text.gguf_encoders import put_around, unigram, word_piece
from lanewise.text.gguf_vocabulary import CONTROL_TYPES, LITERAL_TYPES, SPACE, Vocabulary
from lanewise.text.limited_tokenizer import LimitedTokenizer
from lanewise.text.pre_tokenizers import DEFAULT, LINEAR, PIECES, PRE_TOKENIZERS, PreTokenizer

MAX_PIECE = 1024  # characters: all their cuts are tried

logger = logging.getLogger(__name__)


def gguf_backend(files: TokenizerFiles) -> Backend:
    """Return the tokenizer that GGUF metadata describes."""
    vocabulary = Vocabulary(files)
    model = vocabulary.get("model", str)
    if model == "gpt2" and vocabulary.metadata.get(f"{PREFIX}pre") in PIECES:
        model = "gemma4"
    if model == "gpt2":
        tokenizer, add_bos = _byte_level(vocabulary)
    elif model == "llama":
        tokenizer, add_bos = _sentencepiece(vocabulary), True
    elif model == "gemma4":
        tokenizer, add_bos = _gemma4(vocabulary), vocabulary.get("model", str) != "gpt2"
    elif model == "bert":
        tokenizer, add_bos = word_piece(vocabulary), False
    elif model == "t5":
        tokenizer, add_bos = unigram(vocabulary), False
    else:
        accepted = "accepted are gpt2, llama, gemma4, bert and t5"
        raise vocabulary.error("model", f"{model!r} is not supported; {accepted}")
    _add_tokens(tokenizer, vocabulary)
    add_bos = vocabulary.get("add_bos_token", bool, default=add_bos)
    put_around(tokenizer, vocabulary, add_bos)
    library: Library = tokenizer
    if model == "gpt2" and not LINEAR.issuperset(_way_of_cutting(vocabulary).patterns):
        library = LimitedTokenizer.of(tokenizer.to_str(), str(vocabulary.path))
    tokens = vocabulary.tokens
    eos = {
        token_id
        for key in ("eos_token_id", "eot_token_id", "eom_token_id")
        if (token_id := vocabulary.token_id(key)) is not None
    }
    special = {
        f"{name}_token": tokens[token_id]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (token_id := vocabulary.token_id(f"{key}_token_id")) is not None
    }
    return Backend(
        tokenizer=library,
        ids=range(len(tokens)),  # added tokens are among them
        bos_id=vocabulary.token_id("bos_token_id"),
        eos_ids=frozenset(eos | end_of_turn_ids(tokenizer)),
        add_bos=add_bos,
        byte_level=model == "gpt2",
        strips_leading_space=model != "gpt2" and vocabulary.adds_space_prefix,
        raw_ids=frozenset(
            token_id for token_id, kind in vocabulary.unusual if kind in LITERAL_TYPES
        ),
        special_tokens=special,
        templates=_templates(vocabulary),
        fim_ids=_fim_ids(vocabulary),
        word_pieces=model == "bert",
    )


def _fim_ids(vocabulary: Vocabulary) -> dict[str, int]:
    keys = (key for keys in GGUF_KEYS for key in keys)
    return {key: found for key in keys if (found := vocabulary.token_id(key)) is not None}


def _byte_level(vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    if PREFIX + "pre" not in vocabulary.metadata:
        logger.warning(
            "%s: %spre is missing: how text is cut before merging is a guess, and answers may be"
            " worse than the model's; a newer conversion of the model says it",
            *(vocabulary.path, PREFIX),
        )
    pre = _way_of_cutting(vocabulary)
    merges = _merges(vocabulary)
    tokenizer = build(
        f"{vocabulary.path}: {PREFIX}merges",
        lambda: Tokenizer(BPE(vocabulary.ids, merges, ignore_merges=pre.ignore_merges)),
    )
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.add_bos


def _way_of_cutting(vocabulary: Vocabulary) -> PreTokenizer:
    name = vocabulary.get("pre", str, default=DEFAULT)
    if name not in PRE_TOKENIZERS:
        accepted = ", ".join(sorted((*PRE_TOKENIZERS, *PIECES)))
        raise vocabulary.error("pre", f"{name!r} is not supported; accepted are {accepted}")
    return PRE_TOKENIZERS[name]


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    texts = vocabulary.array("merges", str)
    merges = [tuple(text.split(" ")) for text in texts]
    if set(map(len, merges)) - {2}:
        index = next(index for index, merge in enumerate(merges) if len(merge) != 2)
        raise vocabulary.error(
            f"merges[{index}]", f"{texts[index]!r} is not two tokens with a space between"
        )
    return merges


def _gemma4(vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece's pieces with merges of their own."""
    tokenizer = _pieces(vocabulary, "merges", _merges(vocabulary))
    # No token has a line break and something else.
    lines = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    tokenizer.pre_tokenizer = lines
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    vocabulary.check_lengths(MAX_PIECE)
    merges = merges_from_scores(vocabulary.tokens, vocabulary.scores(), vocabulary.types)
    return _pieces(vocabulary, "tokens", merges)


def _pieces(vocabulary: Vocabulary, key: str, merges: list[tuple[str, str]]) -> Tokenizer:
    """BPE of characters, with bytes for those that are no tokens."""
    unknown = vocabulary.token_id("unknown_token_id")
    tokenizer = build(
        f"{vocabulary.path}: {PREFIX}{key}",
        lambda: Tokenizer(
            BPE(
                vocabulary.ids,
                merges,
                unk_token=None if unknown is None else vocabulary.tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        ),
    )
    replace = normalizers.Replace(" ", SPACE)
    strip = decoders.Strip(" ", 1, 0)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.adds_space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        tokenizer.decoder = decoders.Sequence([*steps, strip])
    else:
        tokenizer.normalizer = replace
        tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece BPE vocabulary, the best-scored token's first.

    SentencePiece joins two neighbours whenever that makes a token, best score first; every way to
    split a token into two tokens is therefore a merge. Control and byte tokens are not pieces.
    """
    pieces = {
        text: index
        for index, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    merges: list[tuple[float, int, int, str, str]] = []
    for text, index in pieces.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in pieces and right in pieces:
                merges.append((-scores[index], index, cut, left, right))
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for _, _, _, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    # Order matters only for new tokens, and all of these are in the vocabulary.
    special, plain = [], []
    for token_id, kind in vocabulary.unusual:
        text = vocabulary.tokens[token_id]
        if kind in CONTROL_TYPES:
            special.append(AddedToken(text, special=True, normalized=False))
        elif kind == TokenType.USER_DEFINED:
            plain.append(AddedToken(text, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _templates(vocabulary: Vocabulary) -> dict[str, str]:
    templates = {}
    for name, value in vocabulary.metadata.items():
        if name == TEMPLATE or name.startswith(TEMPLATE + "."):
            if not isinstance(value, str):
                raise ModelFileError(f"{vocabulary.path}: {name}: a string is needed")
            templates[name.removeprefix(TEMPLATE).removeprefix(".") or "default"] = value
    return templates
