"""Texts of others in lines of ours: short, and without what moves a cursor or ends a line."""

MOST = 460  # characters: with what stands before it, a line has fewer than 500
BEGINNING = 2 / 3


def told(text: str) -> str:
    """A text as a part of one line: short, and what does not print is escaped."""
    text = shortened(text)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shortened(text)


def shortened(text: str) -> str:
    """A text without the middle if it is long: its end says what would be accepted."""
    if len(text) <= MOST:
        return text
    begin = int((MOST - 1) * BEGINNING)
    return f"{text[:begin]}…{text[begin + 1 - MOST :]}"
