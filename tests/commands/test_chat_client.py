"""What ``lanewise chat`` says of an answer's speed."""

from typing import Any

import pytest

from lanewise.api.dialects.chat_completions import ChatCompletionRequest
from lanewise.commands.chat import FIELDS
from lanewise.commands.chat_client import Numbers

USAGE = {
    "completion_tokens": 16,
    "prompt_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 4},
}


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        (
            {"first_s": 0.25, "rest_s": 1.5, "pieces": 16, "usage": USAGE, "reason": "length"},
            "16 tokens, 10.0 tokens/s, first after 250 ms, prompt 9, 4 of them cached,"
            " cut: the most tokens there may be",
        ),
        # It all came at once: how fast it was computed cannot be known.
        (
            {"first_s": 0.25, "rest_s": 0.0, "pieces": 16, "usage": USAGE},
            "16 tokens, first after 250 ms, prompt 9, 4 of them cached",
        ),
        # A server that tells no usage: pieces are counted instead.
        (
            {"first_s": 0.25, "rest_s": 0.5, "pieces": 3},
            "3 tokens, 4.0 tokens/s, first after 250 ms",
        ),
        ({"usage": {"completion_tokens": 0}}, "0 tokens"),
    ],
)
def test_numbers_of_an_answer(numbers: dict[str, Any], line: str):
    assert str(Numbers(**numbers)) == line


def test_fields_that_can_be_set_are_fields_of_requests():
    assert set(FIELDS) <= set(ChatCompletionRequest.model_fields)
