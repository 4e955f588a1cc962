"""Copies of a tokenizer that take a text otherwise."""

import json
from itertools import groupby

import tokenizers


def plain_copy(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a copy, sharing the vocabulary, that treats control tokens as text."""
    copy = tokenizers.Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        copy.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        copy.pre_tokenizer = tokenizer.pre_tokenizer
    added = tokenizer.get_added_tokens_decoder()
    in_order = [token for _, token in sorted(added.items())]
    for special, tokens in groupby(in_order, lambda token: bool(token.special)):
        (copy.add_special_tokens if special else copy.add_tokens)(list(tokens))
    if copy.get_added_tokens_decoder().keys() != added.keys():  # ids with gaps between them
        copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = True
    return copy


def continuing_copy(plain: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a plain tokenizer for text inside a prompt, which gets no leading space.

    Only the pre-tokenizer's "first" rule depends on it: other rules add a space after every control
    token, or never.
    """
    pre = plain.pre_tokenizer
    if pre is None or b'"first"' not in pre.__getstate__():
        return plain
    state = json.dumps(json.loads(plain.to_str()), separators=(",", ":"), ensure_ascii=False)
    state = state.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
    copy = tokenizers.Tokenizer.from_str(state)
    copy.encode_special_tokens = True
    return copy
