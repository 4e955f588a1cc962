"""instructor in its modes: models of pydantic from tools and schemas, whole and in parts."""

from typing import Literal

import instructor
import openai
import pytest
from pydantic import BaseModel

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]


class Weather(BaseModel, extra="forbid"):  # else the bundled model adds fields for ever
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    sunny: bool


@pytest.fixture
def patched(base_url):
    """An instructor over the openai package."""
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as sdk:
        yield lambda mode: instructor.from_openai(sdk, mode=mode)


@pytest.mark.parametrize(
    "mode", [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]
)
def test_a_model_of_pydantic(patched, model, mode):
    ask = {"model": model, "messages": MESSAGES, "max_tokens": 120, "temperature": 0}
    answer = patched(mode).create(**ask, response_model=Weather, max_retries=1)
    assert isinstance(answer, Weather)


def test_parts_of_a_model_as_they_come(patched, model):
    ask = {"model": model, "messages": MESSAGES, "max_tokens": 120, "temperature": 0}
    parts = list(patched(instructor.Mode.TOOLS).create_partial(**ask, response_model=Weather))
    assert len(parts) > 1
    assert parts[-1].sunny in (True, False)
