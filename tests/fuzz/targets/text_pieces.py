"""Text that comes in pieces: tool calls, stop strings and tokens give what the whole gives."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tiny_tokenizers import byte_level_metadata, sentencepiece_metadata

from lanewise.loading.checkpoint import TokenizerFiles
from lanewise.text.detokenizer import StopMatcher, StopStrings
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.tool_calls import GENERIC, HERMES, LLAMA, MISTRAL, ToolCallParser, ToolFormat
from tests.fuzz.model_paths import check_stream
from tests.fuzz.reader import Reader

FORMS = (HERMES, MISTRAL, LLAMA, GENERIC)


def one_input(data: bytes) -> None:
    """The first byte says of what."""
    reader = Reader(data)
    kind = reader.below(4)
    if kind < 2:
        _check_calls(reader)
    elif kind == 2:
        _check_stops(reader)
    else:
        _check_tokens(reader)


def _cut(reader: Reader) -> tuple[str, list[str]]:
    """A text, and the same in pieces."""
    sizes = [reader.below(12) for _ in range(reader.below(30))]
    text = reader.text()
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    return text, [*pieces, text[at:]]


def _parsed(form: ToolFormat, pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Content and calls, of which what was streamed makes the same."""
    parser = ToolCallParser(form)
    content, streamed = "", []
    for i, piece in enumerate(pieces):
        content += parser.push(piece, last=i == len(pieces) - 1)
        for delta in parser.take_deltas():
            if delta["index"] == len(streamed):
                streamed.append({key: delta[key] for key in ("id", "type", "function")})
            else:
                assert delta["index"] == len(streamed) - 1, delta
                streamed[-1]["function"]["arguments"] += delta["function"]["arguments"]
    assert streamed == parser.calls
    return content, [call["function"] for call in parser.calls]


def _check_calls(reader: Reader) -> None:
    form = reader.choice(FORMS)
    text, pieces = _cut(reader)
    whole = _parsed(form, [text])
    assert _parsed(form, pieces) == whole, pieces
    assert _parsed(form, [*text] or [""]) == whole, "character by character"
    assert whole[0] in text
    assert all(isinstance(call["name"], str) for call in whole[1])


def _check_stops(reader: Reader) -> None:
    include = bool(reader.byte() & 1)
    stops = [
        "".join("abc\n"[reader.below(4)] for _ in range(1 + reader.below(6)))
        for _ in range(1 + reader.below(5))
    ]
    text, pieces = _cut(reader)
    text = "".join("abc\n"[ord(char) % 4] for char in text)
    places = [(text.find(stop), len(stop)) for stop in stops if stop in text]
    start, length = min(places, default=(len(text), 0))
    wanted = text[: start + length * include]
    matcher, shown, at = StopMatcher(StopStrings(stops), include), "", 0
    for piece in pieces:
        shown += matcher.push(text[at : at + len(piece)])[0]
        at += len(piece)
        assert wanted.startswith(shown), (text, stops, shown)
    assert shown + matcher.flush() == wanted, (text, stops)
    assert (matcher.matched is not None) == bool(places)


@cache
def _tokenizers() -> tuple[Tokenizer, ...]:
    found = (
        byte_level_metadata(),
        sentencepiece_metadata(),
        sentencepiece_metadata(add_space_prefix=False),
    )
    sizes = (len(metadata["tokenizer.ggml.tokens"]) for metadata in found)
    return tuple(
        Tokenizer.from_files(TokenizerFiles(Path("m"), size, gguf=metadata))
        for metadata, size in zip(found, sizes, strict=True)
    )


def _check_tokens(reader: Reader) -> None:
    tokenizer = reader.choice(_tokenizers())
    skip_special = bool(reader.byte() & 1)
    ids = []
    while not reader.is_empty:
        ids.append(reader.below(tokenizer.vocab_size))
    check_stream(tokenizer, ids, skip_special=skip_special)


def seeds(_folder: Path) -> Iterator[bytes]:
    """Calls of each family, stop strings and tokens."""
    call = '{"name": "look", "KEY": {"at": "a } \\" b", "x": [1, {"y": 2}]}}'
    for i, form in enumerate(FORMS):
        one = call.replace("KEY", form.arguments) + form.after_call
        text = form.begin + one + (form.between or "") + (one if form.between else "") + form.end
        yield bytes([0, i, 3, 4, 2, 9]) + b"Hi <" * bool(form.begin) + text.encode()
    yield bytes([2, 0, 2, 1, 2, 0, 1, 2, 5, 3, 1, 2, 3]) + b"abcabcaab"
    yield bytes([3, 0, 0]) + bytes(range(0, 200, 3))


def words() -> Iterator[bytes]:
    """What begins and ends calls."""
    for form in FORMS:
        yield from (
            part.encode() for part in (form.begin, form.between, form.end, form.after_call) if part
        )
    for text in ('{"name": "', '", "arguments": {', '", "parameters": {', "<|python_tag|>", '\\"'):
        yield text.encode()
