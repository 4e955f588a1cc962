"""The characters that stand for bytes in byte-level vocabularies."""

from __future__ import annotations


def _byte_of_char() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
_LETTERS = [char for char, _ in sorted(BYTE_OF_CHAR.items(), key=lambda item: item[1])]


def lettered(data: bytes) -> str:
    """Return bytes as text of a byte-level vocabulary."""
    return "".join([_LETTERS[byte] for byte in data])
