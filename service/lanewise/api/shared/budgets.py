"""What the texts of clients and models may cost, for the whole server."""

from dataclasses import dataclass

from lanewise.sandbox.lane import Limits
from lanewise.sandbox.pool import Counters, Sandbox
from lanewise.settings import Settings

# More than the tokens of any vocabulary have on average, whatever the text.
MAX_CHARACTERS = 256
# JSON writes a character as six bytes at most.
BYTES_OF_CHARACTER = 6
ROOM = 1 << 16
RETRY_AFTER_S = 5  # where the sandbox is busy
MAX_PIXEL_BYTES = 64 << 20  # of what a tower sees of one image


@dataclass(frozen=True, slots=True)
class TextBudgets:
    """Settings of the same names."""

    max_grammar_bytes: int = Settings.max_grammar_bytes
    grammar_timeout_s: float = Settings.grammar_timeout_s
    grammar_memory: int = Settings.grammar_memory
    grammar_cache_memory: int = Settings.grammar_cache_memory
    template_timeout_s: float = Settings.template_timeout_s
    template_memory: int = Settings.template_memory
    image_timeout_s: float = Settings.image_timeout_s
    image_memory: int = Settings.image_memory

    @classmethod
    def of(cls, settings: Settings) -> "TextBudgets":
        """The budgets in a server's settings."""
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})

    def sandbox(self, max_model_len: int, counters: Counters) -> Sandbox:
        """A sandbox within these budgets."""
        grammar = 4 * BYTES_OF_CHARACTER * self.max_grammar_bytes
        text = BYTES_OF_CHARACTER * MAX_CHARACTERS * max_model_len
        return Sandbox(
            Limits(self.grammar_timeout_s, self.grammar_memory, grammar + ROOM),
            Limits(self.template_timeout_s, self.template_memory, text + ROOM),
            Limits(self.image_timeout_s, self.image_memory, MAX_PIXEL_BYTES),
            counters,
        )
