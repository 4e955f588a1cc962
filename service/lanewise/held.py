"""What requests may make the server hold beside keys and values, for a limit of memory."""

from dataclasses import dataclass

from lanewise.host import GIB, MIB, MemoryLimit

DEFAULT_GRAMMARS, DEFAULT_RESPONSES = 256 * MIB, 64 * MIB
# Tokens of texts as the library makes them, before they are numbers: those of one long text and of
# two short ones at a time.
TEXTS = 112 * MIB


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of each kind."""

    requests: int  # what all have brought and had made
    grammars: int
    responses: int  # that are kept to go on from
    texts: int = TEXTS

    @property
    def n_bytes(self) -> int:
        """All of it."""
        return self.requests + self.grammars + self.responses + self.texts


def held_within(
    limit: MemoryLimit,
    *,
    requests: int | None = None,
    grammars: int = DEFAULT_GRAMMARS,
    responses: int = DEFAULT_RESPONSES,
    body: int = 0,
) -> Held:
    """Parts of the limit: for requests a sixteenth, and no less than two bodies take.

    Of the others as much as is asked for, or less where that would be most of a small machine.
    """
    sixteenth = limit.n_bytes // 16
    return Held(
        max(64 * MIB, 2 * body, min(sixteenth, GIB)) if requests is None else requests,
        min(grammars, max(64 * MIB, sixteenth)),
        min(responses, max(16 * MIB, sixteenth // 2)),
    )
