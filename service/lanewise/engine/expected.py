"""Guesses from a text that an answer is expected to be, mostly: what a client calls a prediction.

Nothing of it is part of any prompt; where the answer repeats it, its tokens cost less time.
"""

from collections.abc import Sequence as Items

from lanewise.engine.prompt_lookup import MAX_MATCH, PromptLookup


class Expected:
    """The index of such a text, shared by all answers that it is expected of."""

    __slots__ = ("_lookup", "tokens")

    def __init__(self, prompt: Items[int], expected: Items[int]) -> None:
        # It is to be found where the answer begins, which is behind the prompt.
        self.tokens = [*prompt[-MAX_MATCH:], *expected]
        self._lookup = PromptLookup(self.tokens, 0)

    def find(self, tokens: Items[int]) -> tuple[int, int]:
        """Where in it the longest end of ``tokens`` stands, as ``PromptLookup.find``."""
        return self._lookup.find_in(self.tokens, tokens)
