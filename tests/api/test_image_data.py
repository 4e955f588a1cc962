"""Bytes of data: URLs and of base64, in all forms that clients write."""

import base64
import contextlib
import random
from urllib.parse import quote_from_bytes

import pytest

import topics
from lanewise.api.shared.image_data import bytes_of_base64, bytes_of_url
from lanewise.text.images.layouts import ImageError

DATA = bytes(range(256)) * 3
TEXT = base64.b64encode(DATA).decode()
MOST = 1024


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.rstrip("="),
        TEXT.replace("+", "-").replace("/", "_"),
        " \t\r\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)),
        f"data:image/png;base64,{TEXT}",
        f"DATA:;x=1;Base64,{TEXT}",
        f"data:image/png;base64,{quote_from_bytes(TEXT.encode())}",
        f"data:image/png,{quote_from_bytes(DATA)}",
    ],
)
def test_all_forms_are_read(text: str) -> None:
    assert bytes_of_base64(text, MOST) == DATA


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png;base64", "invalid_image_url"),
        (f"data:{'a' * 300},x", "invalid_image_url"),
        ("data:;base64,a", "invalid_base64_image"),
        ("data:;base64,a=b=", "invalid_base64_image"),
        ("data:;base64,äöü", "invalid_base64_image"),
        (f"data:;base64,{TEXT * 2}", "image_file_too_large"),
        (f"data:,{'%00' * (MOST + 1)}", "image_file_too_large"),
        (f"data:,{'a' * (MOST + 1)}", "image_file_too_large"),
        (f"data:,{'a' * (5 * MOST)}", "image_file_too_large"),
    ],
)
def test_what_is_wrong_is_named(url: str, code: str) -> None:
    with pytest.raises(ImageError) as caught:
        bytes_of_url(url, MOST)
    assert caught.value.code == code


def test_mutated_urls_are_read_or_refused() -> None:
    drawn = random.Random(1)
    whole = f"data:image/png;base64,{TEXT[:200]}"
    for _ in range(topics.cases(500, 2000)):
        letters = list(whole)
        for _ in range(drawn.randint(1, 6)):
            letters[drawn.randrange(len(letters))] = chr(
                drawn.choice((37, 44, 59, 61, 0, 0xD800, 97))
            )
        with contextlib.suppress(ImageError):
            assert len(bytes_of_base64("".join(letters), MOST)) <= MOST
