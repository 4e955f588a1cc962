"""The bytes of an image that a request brings: a data: URL, or base64 by itself."""

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from lanewise.text.images.layouts import ImageError

SPACE = re.compile(r"\s+")
URL_SAFE = str.maketrans("-_", "+/")
DATA = "data:"
MAX_HEAD = 256  # characters before the comma of a data: URL


def bytes_of_url(url: str, most: int) -> bytes:
    """The bytes in a data: URL; ImageError if it has none or more than ``most``."""
    head, comma, body = url[len(DATA) :].partition(",")
    if not comma or len(head) > MAX_HEAD:
        raise ImageError(
            "invalid_image_url", "a data: URL without a comma; accepted: data:image/png;base64,…"
        )
    words = [word.strip().lower() for word in head.split(";")]
    if "base64" in words[1:]:
        # Percent signs are no base64, so what was written with them is meant.
        written = _unquoted(body).decode("latin-1") if "%" in body else body
        return bytes_of_base64(written, most)
    found = _unquoted(body) if len(body) <= 3 * most else b""
    _check_size(len(found) or len(body) // 3, most)
    return found


def _unquoted(text: str) -> bytes:
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass"))  # which JSON can carry


def bytes_of_base64(text: str, most: int) -> bytes:
    """The bytes that base64 writes, of either alphabet, with or without white space and padding."""
    if text[: len(DATA)].lower() == DATA:
        return bytes_of_url(text, most)
    text = SPACE.sub("", text).rstrip("=")
    if "-" in text or "_" in text:
        text = text.translate(URL_SAFE)
    _check_size(len(text) * 3 // 4, most)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError("invalid_base64_image", f"no base64: {error}") from None


def _check_size(n_bytes: int, most: int) -> None:
    if n_bytes > most:
        raise ImageError(
            "image_file_too_large",
            f"{n_bytes} bytes; accepted: at most {most} (max_image_bytes)",
        )
