"""Builds a tokenizer from the files of a Hugging Face directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import compress
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordPiece

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.loading.base.json_files import parse_object
from lanewise.loading.vocabulary.directory_text import chat_templates, end_ids, special_tokens
from lanewise.text.backend import Backend, Library, build, end_of_turn_ids, warn_of_rowless
from lanewise.text.limited_tokenizer import LimitedTokenizer
from lanewise.text.tokenizer_doubts import doubt

logger = logging.getLogger(__name__)

BERT_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def hf_backend(files: TokenizerFiles) -> Backend:
    """Return the tokenizer that a directory's files describe."""
    where = f"{files.path}/tokenizer.json"
    text = files.text_files.get("tokenizer.json")
    if text is None:
        raise ModelFileError(
            f"{files.path}: tokenizer.json is missing, and so are tokenizer.model, tekken.json, and"
            " vocab.json with merges.txt: no tokenizer"
        )
    parsed = parse_object(text, where)
    config = files.json_files.get("tokenizer_config.json", {})
    changed = _leave_out_rowless(parsed, files.vocab_size, where)
    if _follow_config(parsed, config, where) or changed:
        text = json.dumps(parsed)
    tokenizer = _make(text, parsed, where)
    model = parsed.get("model")
    model = model if isinstance(model, dict) else {}
    unknown = model.get("unk_token")
    if unknown is not None and not isinstance(unknown, str):
        raise ModelFileError(f"{where}: model.unk_token: {unknown!r} is not a string")
    if unknown is not None and tokenizer.token_to_id(unknown) is None:
        raise ModelFileError(f"{where}: model.unk_token: {unknown!r} is not in the vocabulary")
    if isinstance(tokenizer.model, Unigram) and model.get("unk_id") is None:
        raise ModelFileError(f"{where}: model.unk_id is missing; a Unigram vocabulary needs it")
    special = special_tokens(files.path, files.json_files)
    bos_id = _token_id(tokenizer, special.get("bos_token"))
    decoder = json.dumps(parsed.get("decoder"))
    byte_level = '"ByteLevel"' in decoder
    word_pieces = isinstance(tokenizer.model, WordPiece)
    pieces = ('"ByteFallback"', '"Metaspace"', '"WordPiece"')
    if not byte_level and not word_pieces and not any(kind in decoder for kind in pieces):
        raise ModelFileError(
            f"{where}: decoder {decoder[:80]} is not supported; accepted are ByteLevel,"
            " ByteFallback or Metaspace (SentencePiece), and WordPiece"
        )
    return Backend(
        tokenizer=tokenizer,
        ids=frozenset(tokenizer.get_vocab(with_added_tokens=True).values()),
        bos_id=bos_id,
        eos_ids=frozenset(_eos_ids(files, tokenizer, special)),
        add_bos=_adds_bos(
            *(config, tokenizer, bos_id, where),
            has_post_processor=parsed.get("post_processor") is not None,
        ),
        byte_level=byte_level,
        strips_leading_space=word_pieces
        or (not byte_level and _strips_leading_space(parsed.get("decoder"))),
        raw_ids=frozenset(tokenizer.get_added_tokens_decoder()),
        special_tokens=special,
        templates=chat_templates(files.path, files.json_files, files.text_files),
        word_pieces=word_pieces,
    )


def _make(text: str, parsed: Mapping[str, Any], where: str) -> Library:
    """The tokenizer; in a process with limits unless all its parts are known to be cheap."""
    if found := doubt(parsed):
        logger.info("%s: %s is not known to be cheap: a process with limits has it", where, found)
        return LimitedTokenizer.of(text, where)
    tokenizer = build(where, lambda: Tokenizer.from_str(text))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _follow_config(parsed: Mapping[str, Any], config: Mapping[str, Any], where: str) -> bool:
    """Have what tokenizer_config.json says of letters win, as in transformers; whether it did."""
    model, normalizer = parsed.get("model"), parsed.get("normalizer")
    if not isinstance(model, Mapping) or model.get("type", "WordPiece") != "WordPiece":
        return False
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return False
    changed = False
    for name, attribute in BERT_SETTINGS.items():
        value = config.get(name, ...)
        if value is ... or value == normalizer.get(attribute):
            continue
        if not isinstance(value, bool) and not (value is None and name == "strip_accents"):
            folder = where.removesuffix("tokenizer.json")
            raise ModelFileError(
                f"{folder}tokenizer_config.json: {name}: {value!r}; true or false is needed"
            )
        normalizer[attribute] = value
        changed = True
    return changed


def _leave_out_rowless(parsed: dict[str, Any], n_rows: int, where: str) -> bool:
    """Remove tokens that were added without rows of the model for them; whether there were any."""
    added = parsed.get("added_tokens")
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        return False
    beyond = [type(token.get("id")) is int and token["id"] >= n_rows for token in added]
    texts = [str(token.get("content")) for token in compress(added, beyond)]
    if not texts:
        return False
    warn_of_rowless(where, texts)
    parsed["added_tokens"] = list(compress(added, (not one for one in beyond)))
    model = parsed.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        for text in texts:
            if type(found := vocab.get(text)) is int and found >= n_rows:
                del vocab[text]
    return True


def _token_id(tokenizer: Library, text: str | None) -> int | None:
    return None if text is None else tokenizer.token_to_id(text)


def _eos_ids(files: TokenizerFiles, tokenizer: Library, special: Mapping[str, str]) -> set[int]:
    ids = end_of_turn_ids(tokenizer)
    token_id = _token_id(tokenizer, special.get("eos_token"))
    if token_id is not None:
        ids.add(token_id)
    return ids | set(end_ids(files.path, files.json_files, files.vocab_size))


def _adds_bos(
    config: Mapping[str, Any],
    tokenizer: Library,
    bos_id: int | None,
    where: str,
    *,
    has_post_processor: bool,
) -> bool:
    if bos_id is None:
        return False
    said = config.get("add_bos_token")
    if isinstance(said, bool):
        return said
    found = build(where, lambda: list(tokenizer.encode("").ids))
    if found[:1] == [bos_id]:
        return True
    kind = str(config.get("tokenizer_class", ""))
    return not has_post_processor and kind.startswith("LlamaTokenizer")


def _strips_leading_space(decoder: Any) -> bool:
    if not isinstance(decoder, Mapping):
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders")
        return isinstance(parts, list) and any(_strips_leading_space(part) for part in parts)
    if decoder.get("type") == "Metaspace":
        return bool(decoder.get("prepend_scheme", "always") != "never")
    return decoder.get("type") == "Strip" and bool(decoder.get("content") == " ")
