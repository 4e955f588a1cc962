"""Vocabularies of encoders in GGUF metadata: WordPiece ("bert") and Unigram ("t5")."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram, WordPiece
from tokenizers.processors import TemplateProcessing

from lanewise.loading.vocabulary.gguf_text import PREFIX, TokenType
from lanewise.text.backend import build
from lanewise.text.gguf_vocabulary import SPACE, Vocabulary
from lanewise.text.tokenizer_doubts import MAX_PIECE, charsmap_doubt

GOES_ON = "##"
# What the public converter names them by, where metadata does not.
WORD_PIECE_NAMES = {"cls": "[CLS]", "seperator": "[SEP]", "unknown": "[UNK]"}
UNIGRAM_NAMES = {"cls": "<s>", "seperator": "</s>", "unknown": "<unk>"}


def word_piece(vocabulary: Vocabulary) -> Tokenizer:
    """BERT's words and parts of words.

    Converters write them as if every word had a space before it: "▁play" and "ing" for "play" and
    "##ing". A vocabulary without an upper-case letter is one of texts in lower case, of which the
    metadata says nothing.
    """
    vocabulary.rename(_word_piece_token)
    unknown = _special(vocabulary, "unknown", WORD_PIECE_NAMES)
    plain = (text for text in vocabulary.tokens if not _is_bracketed(text))
    lower = not any("A" <= char <= "Z" for text in plain for char in text)
    tokenizer = build(
        f"{vocabulary.path}: {PREFIX}tokens",
        lambda: Tokenizer(
            WordPiece(vocabulary.ids, unk_token=unknown, max_input_chars_per_word=100)
        ),
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=GOES_ON)
    named = [text for text in vocabulary.tokens if text in WORD_PIECE_ADDED]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in named])
    return tokenizer


WORD_PIECE_ADDED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _is_bracketed(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _word_piece_token(text: str) -> str:
    if _is_bracketed(text):
        return text
    return text[1:] if text.startswith(SPACE) else GOES_ON + text


def unigram(vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece's pieces with probabilities, of which the likeliest cut of a text is taken."""
    vocabulary.check_lengths(MAX_PIECE)
    pieces = list(zip(vocabulary.tokens, vocabulary.scores(), strict=True))
    unknown = vocabulary.ids.get(_special(vocabulary, "unknown", UNIGRAM_NAMES))
    has_bytes = TokenType.BYTE in vocabulary.types
    tokenizer = build(
        f"{vocabulary.path}: {PREFIX}tokens",
        lambda: Tokenizer(Unigram(pieces, unk_id=unknown, byte_fallback=has_bytes)),
    )
    charsmap = bytes(
        value & 0xFF for value in vocabulary.array("precompiled_charsmap", int, required=False)
    )
    steps: list[normalizers.Normalizer] = []
    if charsmap:
        where = f"{vocabulary.path}: {PREFIX}precompiled_charsmap"
        if found := charsmap_doubt(charsmap):
            raise vocabulary.error("precompiled_charsmap", found)
        steps.append(build(where, lambda: normalizers.Precompiled(charsmap)))
    if vocabulary.get("remove_extra_whitespaces", bool, default=True):
        # Spaces alone: the map has made them of all others.
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if vocabulary.adds_space_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    return tokenizer


def put_around(tokenizer: Tokenizer, vocabulary: Vocabulary, add_bos: bool) -> None:
    """Have whole texts begin and end as the model's do: [CLS] a [SEP], or <s> a </s>."""
    begin, end = _ends(vocabulary, add_bos)
    if vocabulary.get("model", str) == "bert":
        pair = [*begin, "$A", *end, "$B:1", *(f"{text}:1" for text in end)]
    else:  # RoBERTa's pairs have two ends between, and no types of their own
        pair = [*begin, "$A", *end, *(end if begin else []), "$B", *end]
    named = [(text, vocabulary.ids[text]) for text in dict.fromkeys(begin + end)]
    tokenizer.post_processor = build(
        f"{vocabulary.path}: {PREFIX}tokens",
        lambda: TemplateProcessing([*begin, "$A", *end], pair, named),
    )


def _ends(vocabulary: Vocabulary, add_bos: bool) -> tuple[list[str], list[str]]:
    names = {"bert": WORD_PIECE_NAMES, "t5": UNIGRAM_NAMES}.get(vocabulary.get("model", str))
    if names is not None:
        return [_special(vocabulary, "cls", names)], [_special(vocabulary, "seperator", names)]
    ends: list[list[str]] = []
    add_eos = vocabulary.get("add_eos_token", bool, default=False)
    for name, asked in (("bos", add_bos), ("eos", add_eos)):
        token_id = vocabulary.token_id(f"{name}_token_id")
        ends.append([vocabulary.tokens[token_id]] if asked and token_id is not None else [])
    return ends[0], ends[1]


def _special(vocabulary: Vocabulary, name: str, names: dict[str, str]) -> str:
    """The text of the token with a part to play: as the metadata says, or as it is called."""
    key = f"{name}_token_id"
    token_id = vocabulary.token_id(key)
    if token_id is not None:
        return str(vocabulary.tokens[token_id])
    if names[name] not in vocabulary.ids:
        raise vocabulary.error(key, f"missing, and no token is called {names[name]}")
    return names[name]
