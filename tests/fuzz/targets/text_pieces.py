"""Text that comes in pieces: tool calls, stop strings and tokens give what the whole gives."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tiny_tokenizers import byte_level_metadata, sentencepiece_metadata

from lanewise.loading.base.checkpoint import TokenizerFiles
from lanewise.text.answers.calls import CallFormat
from lanewise.text.answers.families import ATEM, HARMONY, AnswerFormat, PlainFormat
from lanewise.text.answers.harmony import TOKENS
from lanewise.text.answers.json_calls import GENERIC, HERMES, LLAMA, MISTRAL
from lanewise.text.answers.named_calls import MISTRAL_NAMED, MISTRAL_WITH_IDS
from lanewise.text.answers.python_calls import LFM2
from lanewise.text.answers.sectioned_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from lanewise.text.answers.tagged_calls import GLM, QWEN3_CODER, SEED
from lanewise.text.answers.thinking import THINK, Start
from lanewise.text.detokenizer import MARK, StopMatcher, StopStrings
from lanewise.text.tokenizer import Tokenizer
from tests.fuzz.model_paths import check_stream
from tests.fuzz.reader import Reader

FORMS = (HERMES, MISTRAL, LLAMA, GENERIC)
ANSWER = 128  # and above: first bytes of whole answers
SECTIONED = (DEEPSEEK, DEEPSEEK_V31, KIMI)
OTHERS: tuple[CallFormat, ...] = (
    *(QWEN3_CODER, GLM, SEED, MISTRAL_NAMED, MISTRAL_WITH_IDS),
    *(*SECTIONED, LFM2),
)
ANSWERS: tuple[AnswerFormat, ...] = (
    *(HARMONY, ATEM),
    *(PlainFormat(form, THINK) for form in (*FORMS, *OTHERS)),
)
TOOLS = {"f": {"properties": {"s": {"type": "string"}, "n": {"type": ["integer", "null"]}}}}


def one_input(data: bytes) -> None:
    """The first byte says of what."""
    reader = Reader(data)
    number = reader.byte()
    kind = number % 4
    if number >= ANSWER:
        _check_answers(reader)
    elif kind < 2:
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


def _parsed(form: CallFormat, pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Content and calls, of which what was streamed makes the same."""
    parser = form.parser({})
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


def _read(form: AnswerFormat, pieces: list[str]) -> tuple[str, str, list[dict[str, Any]]]:
    parser = form.parser(Start.OPEN, TOOLS)
    reasoning = content = ""
    arguments: list[str] = []
    for i, piece in enumerate(pieces):
        more, text = parser.push(piece, last=i == len(pieces) - 1)
        reasoning, content = reasoning + more, content + text
        for delta in parser.take_deltas():
            arguments += [""] if delta["index"] == len(arguments) else []
            arguments[delta["index"]] += delta["function"]["arguments"]
    functions = [call["function"] for call in parser.calls]
    assert [function["arguments"] for function in functions] == arguments
    return reasoning, content, functions


def _check_answers(reader: Reader) -> None:
    form = reader.choice(ANSWERS)
    text, pieces = _cut(reader)
    if form.marks_tokens:
        for token in TOKENS:
            text = text.replace(token, MARK + token)
        pieces = [text[i : i + 7] for i in range(0, len(text), 7)] or [""]
    whole = _read(form, [text])
    assert _read(form, pieces) == whole, pieces
    assert _read(form, [*text] or [""]) == whole, "character by character"
    assert MARK not in str(whole)


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
    for i, shape in enumerate(ANSWERS):
        head = bytes([ANSWER, i, 3, 4, 2, 9])
        if shape.marks_tokens:
            text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary"
            yield head + f"{text} to=functions.f <|constrain|>json<|message|>{{}}<|call|>".encode()
        yield head + b"<think>\na\n</think>\nb<tool_call>\n<function=f>\n<parameter=s>\nx\n"
        yield head + b"<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
        for part in SECTIONED:
            call = "functions.f:0" if part.numbered else "f"
            call = f"{part.call_begin}{part.before_name}{call}{part.arguments_tag}{{}}"
            yield head + f"{part.begin}{call}{part.call_end}{part.end}b".encode()
        yield head + f"{LFM2.begin}[f(s='a', n=[None]), g()]{LFM2.end}b".encode()
        yield head + b"</parameter>\n</function>\n</tool_call>[TOOL_CALLS]f[CALL_ID]a[ARGS]{}"
    yield bytes([2, 0, 2, 1, 2, 0, 1, 2, 5, 3, 1, 2, 3]) + b"abcabcaab"
    yield bytes([3, 0, 0]) + bytes(range(0, 200, 3))


def words() -> Iterator[bytes]:
    """What begins and ends calls."""
    for form in FORMS:
        yield from (
            part.encode() for part in (form.begin, form.between, form.end, form.after_call) if part
        )
    for other in OTHERS:
        yield from (tag.encode() for tag in (other.begin, *other.tags()) if tag)
    yield from (token.encode() for token in TOKENS)
    for text in ("<think>", "</think>", "analysis", "final", "commentary", " to=functions.f"):
        yield text.encode()
    for text in ('{"name": "', '", "arguments": {', '", "parameters": {', "<|python_tag|>", '\\"'):
        yield text.encode()
