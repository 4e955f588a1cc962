"""Tool calls as model families write them: grammars that make them, and back to OpenAI's form."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lanewise.text.chat_template import ChatTemplate
from lanewise.text.grammar import GrammarError, GrammarSource, styled
from lanewise.text.tokenizer import Tokenizer

PYTHON_TAG = "<|python_tag|>"  # Llama 3 may put it before a call
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
# Keywords beside which we cannot know what other properties an object may have.
OPEN_KEYWORDS = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"}


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family writes calls: begin, call, between, call … end."""

    name: str
    begin: str  # empty: a call is the whole answer, from its first character on
    between: str | None  # None: one call at most
    end: str
    arguments: str = "arguments"  # the key of the arguments
    after_call: str = ""
    id_length: int | None = None  # of ids that its template accepts; None: any
    takes_tools: bool = True  # the template writes tools into the prompt


HERMES = ToolFormat(
    "hermes",
    begin="<tool_call>\n",
    between="\n<tool_call>\n",
    end="",
    after_call="\n</tool_call>",
)
MISTRAL = ToolFormat("mistral", begin="[TOOL_CALLS][", between=", ", end="]", id_length=9)
LLAMA = ToolFormat("llama", begin="", between=None, end="", arguments="parameters")
# For templates that know no tools: the most widespread format, explained in the prompt.
GENERIC = ToolFormat(
    "generic",
    begin=HERMES.begin,
    between=HERMES.between,
    end="",
    after_call=HERMES.after_call,
    takes_tools=False,
)

EXPLANATION = """You may call functions to answer. They are listed within <tools></tools> tags:
<tools>
{tools}
</tools>
To call a function, write its name and arguments as a JSON object within <tool_call></tool_call> \
tags:
<tool_call>
{{"name": <function name>, "arguments": <arguments>}}
</tool_call>"""


def tool_format(template: ChatTemplate) -> ToolFormat:
    """The format of the family that a chat template is of."""
    text = template.source(tools=True)
    if "[TOOL_CALLS]" in text:
        return MISTRAL
    if "<tool_call>" in text:
        return HERMES
    if PYTHON_TAG in text or '"parameters": ' in text:
        return LLAMA
    return HERMES if re.search(r"\btools\b", text) else GENERIC


def explained(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A conversation with its tools, calls and results as text, for a template without tools."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    shown = [_as_text(message) for message in messages]
    # Not every template has a system role.
    first = next((m for m in shown if m["role"] in ("system", "user")), shown[0])
    parts = EXPLANATION.format(tools=listed), first["content"]
    first["content"] = "\n\n".join(parts[::-1] if first["role"] == "system" else parts)
    return shown


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(message)
    if shown["role"] in ("tool", "function"):
        text = f"<tool_response>\n{shown['content']}\n</tool_response>"
        return {"role": "user", "content": text}
    for call in shown.pop("tool_calls", None) or ():
        function = call.get("function", call)
        names = {key: function.get(key) for key in ("name", "arguments")}
        text = f"<tool_call>\n{json.dumps(names, ensure_ascii=False)}\n</tool_call>"
        shown["content"] = "\n".join(filter(None, (shown.get("content"), text)))
    return shown


def argument_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of a function's arguments: always an object, of the named properties alone."""
    if parameters is None:
        return NO_PARAMETERS
    schema = {"type": "object", **parameters}
    if schema["type"] != "object":
        raise GrammarError(f"type is {schema['type']!r}; the arguments are an object")
    if "properties" in schema and not OPEN_KEYWORDS & schema.keys():
        schema["additionalProperties"] = False
    return schema


def call_grammar(
    form: ToolFormat,
    tools: Mapping[str, Mapping[str, Any] | None],
    tokenizer: Tokenizer,
    *,
    required: bool,
    parallel: bool,
) -> GrammarSource:
    """The grammar of an answer that calls some of ``tools``, which are parameters by name.

    Unless a call is required the answer may be, or begin with, any text.
    """
    rules = [f"call: ({' | '.join(f'call_{i}' for i in range(len(tools)))}) {{after}}"]
    for i, (name, parameters) in enumerate(tools.items()):
        head = f'{{"name": {json.dumps(name)}, "{form.arguments}": '
        schema = styled(argument_schema(parameters))
        rules.append(f'call_{i}: {_quoted(head)} %json {schema} "}}"')
    rules[0] = rules[0].format(after=_symbols(form.after_call, tokenizer))
    more = ""
    if parallel and form.between is not None:
        more = f"({_symbols(form.between, tokenizer)} call)*"
    calls = f"call {more} {_symbols(form.end, tokenizer)}"
    start = _required(form, calls, tokenizer) if required else _optional(form, calls, tokenizer)
    return GrammarSource("lark", "\n".join(["%llguidance {}", *start, *rules]))


def _required(form: ToolFormat, calls: str, tokenizer: Tokenizer) -> list[str]:
    return [f"start: {_symbols(form.begin, tokenizer)} {calls}"]


def _optional(form: ToolFormat, calls: str, tokenizer: Tokenizer) -> list[str]:
    any_text = r"TEXT: /(.|\n)*/"
    if not form.begin:
        tag = tokenizer.split_special(PYTHON_TAG)[0]
        before = f"<[{tag}]>? " if isinstance(tag, int) else ""
        return [f"start: TEXT | {before}{calls}", r"TEXT: /([^{](.|\n)*)?/"]
    first, *rest = tokenizer.split_special(form.begin)
    if isinstance(first, int):
        return [f"start: TEXT (<[{first}]> {_joined(rest)} {calls})?", any_text]
    # Text goes on until the tag is complete: from there on the grammar decides.
    tag, line = form.begin.rstrip(), form.begin[len(form.begin.rstrip()) :]
    start = f"start: TEXT | before {_symbols(line, tokenizer)} {calls}"
    return [start, f"before[lazy]: TEXT {_quoted(tag)}", any_text]


def _symbols(text: str, tokenizer: Tokenizer) -> str:
    """Text as a grammar has it, in which control tokens are tokens and no text."""
    return _joined(tokenizer.split_special(text))


def _joined(parts: Sequence[str | int]) -> str:
    return " ".join(f"<[{p}]>" if isinstance(p, int) else _quoted(p) for p in parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def marks(form: ToolFormat, tokenizer: Tokenizer) -> frozenset[int]:
    """The control tokens that are part of a call's text."""
    texts = (form.begin, form.between or "", form.end, form.after_call, PYTHON_TAG)
    parts = (part for text in texts for part in tokenizer.split_special(text))
    return frozenset(part for part in parts if isinstance(part, int))


# A string of JSON: a model that writes freely may put anything between the quotes.
CHARACTERS = r'[^"\\\x00-\x1f]*'
NAME = rf'"{CHARACTERS}(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{{4}}){CHARACTERS})*"'
HEAD = re.compile(rf'\s*\{{"name": ({NAME}), "(?:arguments|parameters)": (?=\{{)')
LONGEST_HEAD = 1 << 10  # characters, more than the longest name has


class ToolCallParser:
    """Takes an answer's text in pieces; gives its content, and its calls as OpenAI streams them."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._begin = form.begin.rstrip()
        self._text = ""  # not yet understood
        self._state = self._content if self._begin else self._first_character
        self._shown = ""  # content found by the last push
        self._deltas: list[dict[str, Any]] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self.calls: list[dict[str, Any]] = []

    def push(self, text: str, *, last: bool = False) -> str:
        """Take more text; return what of it is content."""
        self._text += text
        self._shown = ""
        while self._state():
            pass
        if last and self._state in (self._content, self._first_character):
            self._shown, self._text = self._shown + self._text, ""
        return self._shown

    def take_deltas(self) -> list[dict[str, Any]]:
        """What the last pushes added to the calls."""
        deltas, self._deltas = self._deltas, []
        return deltas

    # Each state uses up what it understands; it says whether the next one may go on.

    def _first_character(self) -> bool:
        text = self._text.removeprefix(PYTHON_TAG)
        if not text or (text == self._text and PYTHON_TAG.startswith(text)):
            return False
        self._text = text
        self._state = self._head if text.startswith("{") else self._rest
        return True

    def _rest(self) -> bool:
        self._shown, self._text = self._shown + self._text, ""
        return False

    def _content(self) -> bool:
        before, found, after = self._text.partition(self._begin)
        if found:
            self._shown += before
            self._text, self._state = after, self._head
            return True
        held = next(n for n in range(len(self._begin), -1, -1) if before.endswith(self._begin[:n]))
        cut = len(before) - held
        self._shown, self._text = self._shown + before[:cut], before[cut:]
        return False

    def _head(self) -> bool:
        match = HEAD.match(self._text, 0, LONGEST_HEAD)  # a bound on what each piece costs
        if match is None:
            return False
        function = {"name": json.loads(match[1]), "arguments": ""}
        call = {"id": self._new_id(), "type": "function", "function": function}
        self._deltas.append({"index": len(self.calls), **call, "function": dict(function)})
        self.calls.append(call)
        self._text, self._state = self._text[match.end() :], self._arguments
        return True

    def _arguments(self) -> bool:
        end = next(self._ends(), None)
        piece, self._text = self._text[:end], "" if end is None else self._text[end:]
        if piece:
            index = len(self.calls) - 1
            self.calls[index]["function"]["arguments"] += piece
            self._deltas.append({"index": index, "function": {"arguments": piece}})
        if end is None:
            return False
        self._state = self._after
        return True

    def _ends(self) -> Iterator[int]:
        """Where the arguments end in the text, if they do."""
        for position, char in enumerate(self._text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    yield position + 1
                    return

    def _after(self) -> bool:
        expected = "}" + self._form.after_call + (self._form.between or "")
        if not self._text.startswith(expected) or self._form.between is None:
            return False
        self._text, self._state = self._text[len(expected) :], self._head
        return True

    def _new_id(self) -> str:
        length = self._form.id_length
        if length is None:
            return "call_" + secrets.token_hex(12)
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))
