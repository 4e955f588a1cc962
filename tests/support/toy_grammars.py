"""Walks a text through a compiled grammar as a sequence would."""

import numpy as np


def matches(compiled, tokenizer, text: str | list[int]) -> bool:
    """Whether a grammar takes a text, token by token through its masks, and lets it end there."""
    matcher = compiled.new_matcher()
    for token in tokenizer.encode_inside(text) if isinstance(text, str) else text:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint32)
        if not mask[token // 32] >> np.uint32(token % 32) & 1 or not matcher.consume_token(token):
            return False
    return matcher.is_accepting()
