"""JSON that escapes halves of characters: such strings are valid JSON, but no text."""

import re

HEX = "[0-9a-fA-F]"
# Every escape: pairs of halves, halves alone, others.
ESCAPE = re.compile(
    rf"\\(?:u[dD][89abAB]{HEX}{{2}}\\u[dD][c-fC-F]{HEX}{{2}}|(u[dD][89a-fA-F]{HEX}{{2}})|.)",
    re.DOTALL,
)


def as_characters(text: str) -> str:
    """A JSON text in which U+FFFD stands for each escape of a half without its other half."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return ESCAPE.sub(lambda found: found[0] if found[1] is None else "\\ufffd", text)


def without_surrogates(text: str) -> str:
    """The text with question marks for halves of characters, which have no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
