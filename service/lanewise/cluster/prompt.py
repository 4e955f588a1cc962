"""The beginning of a prompt as text, by which requests are brought together."""

import json
from collections.abc import Iterator

# What servers share of longer prompts is decided by then; each character is kept by the router.
MAX_CHARACTERS = 8192
# In the order in which chat templates write them. OpenAI's, Anthropic's and Ollama's fields.
FIELDS = ("system", "instructions", "messages", "prompt", "input")


def prompt_text(body: bytes) -> str:
    """The first characters of the texts of a request; empty if it has none or is no JSON object."""
    try:
        fields = json.loads(body) if body.startswith(b"{") else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    found = ""
    for name in FIELDS:
        for text in _texts(fields.get(name)):
            found += text[:MAX_CHARACTERS]
            if len(found) >= MAX_CHARACTERS:
                return found[:MAX_CHARACTERS]
    return found


def _texts(value: object) -> Iterator[str]:
    """Strings of a message, its content and their parts; a prompt may be strings or tokens."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int):
        yield f"{value},"
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
        yield from _texts(value.get("text"))
