"""Guesses from the text that a client expects as the answer (OpenAI's ``prediction``).

The text is no part of the prompt; where the answer repeats it, tokens come faster.
"""

from collections.abc import Sequence as Items

from lanewise.engine.prompt_lookup import MAX_MATCH, PromptLookup


class Expected:
    """The index of an expected text, shared by all answers to which it applies."""

    __slots__ = ("_lookup", "tokens")

    def __init__(self, prompt: Items[int], expected: Items[int]) -> None:
        # The answer begins after the prompt, so the prompt's last tokens must match as well.
        self.tokens = [*prompt[-MAX_MATCH:], *expected]
        self._lookup = PromptLookup(self.tokens, 0)

    def find(self, tokens: Items[int]) -> tuple[int, int]:
        """The place in ``self.tokens`` after the longest match of ``tokens``' end; its length."""
        return self._lookup.find_in(self.tokens, tokens)
