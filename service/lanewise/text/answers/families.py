"""How the family of a chat template answers: which form, the grammar of it and who reads it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from lanewise.text.answers import atem, harmony
from lanewise.text.answers.calls import CallFormat, CallParser, Tools, with_ids
from lanewise.text.answers.content_tags import ContentSplitter, ContentTags
from lanewise.text.answers.explained import explained, with_tools_in_system
from lanewise.text.answers.json_calls import PYTHON_TAG
from lanewise.text.answers.rules import ANY_TEXT, joined, lark, quoted, symbols, text_up_to, unlike
from lanewise.text.answers.signs import call_format, content_tags, thinking_tags
from lanewise.text.answers.thinking import Start, ThinkingSplitter, ThinkingTags
from lanewise.text.chat_template import ChatTemplate
from lanewise.text.grammar import GrammarSource
from lanewise.text.tokenizer import Tokenizer

SWITCH = "enable_thinking"  # a variable of many templates
STRENGTH = "reasoning_strength"  # what Muse's calls the effort
GAP = r"GAP: /\s{1,8}/"  # between a tag and what it announces
Messages = Sequence[Mapping[str, Any]]
Listed = Sequence[Mapping[str, Any]]  # tools, as templates get them


class AnswerParser(Protocol):
    """Takes an answer's text in pieces."""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls so far."""

    def take_deltas(self) -> list[dict[str, Any]]:
        """What the last pushes added to the calls."""

    def push(self, text: str, *, last: bool = False) -> tuple[str, str]:
        """Take more text; return reasoning and content."""


class AnswerFormat(ABC):
    """How a family answers."""

    efforts: tuple[str, ...] | None = None  # of reasoning that there are; None: any
    thinking: ThinkingTags | None = None  # around reasoning
    marks_calls = True  # what is a call says so from its first character on
    marks_tokens = False  # the parser needs to know which texts are control tokens

    @property
    def thinks(self) -> bool:
        """Whether answers may have reasoning."""
        return self.thinking is not None

    @abstractmethod
    def conversation(self, messages: Messages, tools: Listed | None) -> tuple[Messages, Any]:
        """What the template gets for messages and for tools, which may become part of messages."""

    @abstractmethod
    def needs_parser(self, tools: Tools | None) -> bool:
        """Whether answers are more than content, with these tools."""

    @abstractmethod
    def tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The control tokens that are part of an answer's form."""

    @abstractmethod
    def start_of(self, prompt: str, continued: str | None) -> Start:
        """What an answer to a prompt begins with, or one of which there is a part already."""

    @abstractmethod
    def before_content(self, start: Start) -> str:
        """What an answer without reasoning writes before its content, control tokens by name."""

    @abstractmethod
    def call_grammar(
        self,
        tools: Tools,
        tokenizer: Tokenizer,
        start: Start,
        *,
        required: bool,
        parallel: bool,
        body: GrammarSource | None = None,
    ) -> GrammarSource:
        """The grammar of an answer that may, or must, call some of ``tools``.

        Unless a call is required the answer may be, or begin with, any text. If ``marks_calls``
        it may be a text of ``body`` alone too. GrammarError if the parameters of one of the tools
        cannot be used.
        """

    @abstractmethod
    def body_grammar(
        self, body: GrammarSource, tokenizer: Tokenizer, start: Start
    ) -> GrammarSource:
        """The grammar of an answer whose content obeys ``body``."""

    @abstractmethod
    def parser(self, start: Start, tools: Tools | None) -> AnswerParser:
        """Something that reads one answer."""


class HarmonyFormat(AnswerFormat):
    """Messages on channels."""

    efforts: tuple[str, ...] | None = harmony.EFFORTS
    marks_tokens = True
    thinks = True

    def conversation(self, messages: Messages, tools: Listed | None) -> tuple[Messages, Any]:
        """The template takes tools, but of words before a call only one kind."""
        return list(map(harmony.with_one_preamble, messages)), tools

    def needs_parser(self, tools: Tools | None) -> bool:
        """Always: content has a header too."""
        return True

    def tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The tokens of headers and ends."""
        return _ids(harmony.TOKENS, tokenizer)

    def start_of(self, prompt: str, continued: str | None) -> Start:
        """A header, unless a message is to be continued."""
        return Start.CONTENT if continued is not None else harmony.harmony_start(prompt)

    def before_content(self, start: Start) -> str:
        """The final message's header."""
        return "" if start is Start.CONTENT else harmony.FINAL

    def call_grammar(
        self,
        tools: Tools,
        tokenizer: Tokenizer,
        start: Start,
        *,
        required: bool,
        parallel: bool,
        body: GrammarSource | None = None,
    ) -> GrammarSource:
        """One call at most: it ends the answer."""
        if body is not None and not required and start is Start.CONTENT:
            return body
        return harmony.harmony_calls(tools, tokenizer, start, required=required, body=body)

    def body_grammar(
        self, body: GrammarSource, tokenizer: Tokenizer, start: Start
    ) -> GrammarSource:
        """The final message's."""
        return body if start is Start.CONTENT else harmony.harmony_body(body, tokenizer)

    def parser(self, start: Start, tools: Tools | None) -> AnswerParser:
        """Reads messages, whatever tools there are."""
        return harmony.HarmonyParser(start)


class AtemFormat(HarmonyFormat):
    """Messages to recipients."""

    efforts = None

    def conversation(self, messages: Messages, tools: Listed | None) -> tuple[Messages, Any]:
        """The template takes tools, but no words beside calls."""
        return list(map(atem.with_words_as_reasoning, messages)), tools

    def tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The tokens of headers and ends."""
        return _ids(atem.TOKENS, tokenizer)

    def before_content(self, start: Start) -> str:
        """The header of a message to the user."""
        return "" if start is Start.CONTENT else atem.header(atem.USER)

    def call_grammar(
        self,
        tools: Tools,
        tokenizer: Tokenizer,
        start: Start,
        *,
        required: bool,
        parallel: bool,
        body: GrammarSource | None = None,
    ) -> GrammarSource:
        """Calls end the answer, each a message of its own."""
        if body is not None and not required and start is Start.CONTENT:
            return body
        how = {"required": required, "parallel": parallel}
        return atem.atem_grammar(tools, tokenizer, start, body=body, **how)

    def body_grammar(
        self, body: GrammarSource, tokenizer: Tokenizer, start: Start
    ) -> GrammarSource:
        """The last message's."""
        is_there = start is Start.CONTENT
        return body if is_there else atem.atem_grammar({}, tokenizer, start, body=body)

    def parser(self, start: Start, tools: Tools | None) -> AnswerParser:
        """Reads messages, and calls in those to functions."""
        return atem.AtemParser(start, tools)


@dataclass(frozen=True)
class PlainFormat(AnswerFormat):
    """Content, with calls after or in place of it, and perhaps reasoning before it."""

    calls: CallFormat
    thinking: ThinkingTags | None = None
    tools_in_system: bool = False  # the template looks for tools there
    content: ContentTags | None = None  # around content

    @property
    def marks_calls(self) -> bool:  # type: ignore[override]
        """Unless a call is the whole answer."""
        return bool(self.calls.begin)

    def conversation(self, messages: Messages, tools: Listed | None) -> tuple[Messages, Any]:
        """Tools are the template's affair, if it knows any; foreign ids are not."""
        if self.calls.id_length is not None:
            messages = with_ids(messages, self.calls.id_length)
        if tools is None:
            return messages, None
        if self.tools_in_system:
            return with_tools_in_system(messages, tools), None
        if not self.calls.takes_tools:
            return explained(messages, tools), None
        return messages, tools

    def needs_parser(self, tools: Tools | None) -> bool:
        """For calls, for reasoning and for what is around content."""
        return bool(tools) or self.thinking is not None or self.content is not None

    def tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The tokens of calls, and the tokens around reasoning and content."""
        tags = self.calls.begin, *self.calls.tags()
        if self.thinking is not None:
            tags += self.thinking.begin, self.thinking.end
        if self.content is not None:
            tags += self.content.begin, self.content.end
        return _ids(tags, tokenizer)

    def start_of(self, prompt: str, continued: str | None) -> Start:
        """Reasoning, if there is any."""
        if self.thinking is None:
            return Start.CONTENT if continued is None else Start.MIDDLE
        if continued is not None:
            return self.thinking.continued(continued)
        return self.thinking.start_of(prompt)

    def before_content(self, start: Start) -> str:
        """The end of reasoning that the prompt has begun, and the tag before content."""
        ended = self.thinking is not None and start is Start.THOUGHT
        text = f"\n{self.thinking.end}\n\n" if self.thinking is not None and ended else ""
        has_tag = self.content is not None and start is not Start.MIDDLE
        return text + (self.content.begin if self.content is not None and has_tag else "")

    def call_grammar(
        self,
        tools: Tools,
        tokenizer: Tokenizer,
        start: Start,
        *,
        required: bool,
        parallel: bool,
        body: GrammarSource | None = None,
    ) -> GrammarSource:
        """Reasoning, text and calls."""
        rules = [*self.calls.rules(tools, tokenizer, parallel=parallel), ANY_TEXT]
        if required:
            rules.append(f"rest: {symbols(self.calls.begin, tokenizer)} calls")
            return lark([*self._start_rules(tokenizer, start, "rest", "rest"), *rules])
        if body is not None:
            body_rule = self._in_tags("@body", tokenizer)
            rules.append(f"rest: {body_rule} | {symbols(self.calls.begin, tokenizer)} calls")
            rules = [*self._start_rules(tokenizer, start, "rest", "rest"), *rules]
            return body.after(lark(rules).text)
        rules += [*self._optional(tokenizer, "rest", "TEXT"), *self._behind_tag(tools, tokenizer)]
        first = "rest"
        if start is Start.OPEN and self.thinking is not None:
            first = "first_rest"
            # What begins otherwise than reasoning has none.
            rules.append(f"FIRST_TEXT: /{unlike(self.thinking.begin)}/")
            rules += self._optional(tokenizer, "first_rest", "FIRST_TEXT")
        return lark([*self._start_rules(tokenizer, start, "rest", first), *rules])

    def body_grammar(
        self, body: GrammarSource, tokenizer: Tokenizer, start: Start
    ) -> GrammarSource:
        """Reasoning, then the body."""
        shown = self._in_tags("@body", tokenizer)
        if start.is_content and self.content is None:
            return body
        rules = [*self._start_rules(tokenizer, start, shown, shown), ANY_TEXT]
        return body.after(lark(rules).text)

    def parser(self, start: Start, tools: Tools | None) -> AnswerParser:
        """Reads reasoning, then calls."""
        splitter = None if self.thinking is None else ThinkingSplitter(self.thinking, start)
        content = None if self.content is None else ContentSplitter(self.content, start)
        return _PlainParser(splitter, content, self.calls.parser(tools) if tools else None)

    def _in_tags(self, rule: str, tokenizer: Tokenizer) -> str:
        """What is content, perhaps between tags."""
        if self.content is None:
            return rule
        begin, end = (symbols(tag, tokenizer) for tag in (self.content.begin, self.content.end))
        return rf"({begin} /\s{{0,4}}/)? {rule} (/\s{{0,4}}/ {end})?"

    def _start_rules(self, tokenizer: Tokenizer, start: Start, rest: str, first: str) -> list[str]:
        """``start``: reasoning and ``rest``, or ``first`` where there need not be reasoning."""
        tags = self.thinking
        if tags is None or start.is_content:
            return [f"start: {rest}"]
        thought = [r"SPACE: /\s{1,4}/", text_up_to("thought", tags.end, tokenizer)]
        after = "" if rest == "rest" and first != "rest" else "SPACE? "
        if start is Start.THOUGHT:
            return [f"start: thought {after}{rest}", *thought]
        begin = symbols(tags.begin, tokenizer)
        return [f"start: SPACE? {begin} thought {after}{rest} | {first}", *thought]

    def _optional(self, tokenizer: Tokenizer, rule: str, text: str) -> list[str]:
        """A rule of any text, of calls, or of text and calls."""
        begin = self.calls.begin
        if not begin:
            tag = tokenizer.split_special(PYTHON_TAG)[0]
            before = f"<[{tag}]>? " if isinstance(tag, int) else ""
            return [f"{rule}: NO_CALL | {before}calls", r"NO_CALL: /([^{](.|\n)*)?/"]
        parts = tokenizer.split_special(begin)
        if isinstance(parts[0], int):
            shown = text
            if self.content is not None and _ids((self.content.begin,), tokenizer):
                shown = self._in_tags(text, tokenizer)
            return [f"{rule}: {shown} ({joined(parts)} calls)?"]
        # Text goes on until the tag is complete: from there on the grammar decides.
        tag, called = begin.rstrip(), f"{rule}_called"
        return [
            f"{rule}: {text} | {called} behind_tag",
            f"{called}[lazy]: {text} {quoted(tag)}",
        ]

    def _behind_tag(self, tools: Tools, tokenizer: Tokenizer) -> list[str]:
        """Rules of what follows a tag that is text: calls, or more text if it was a mention."""
        tag = self.calls.begin.rstrip()
        if not tag or isinstance(tokenizer.split_special(tag)[0], int):
            return []
        space = "GAP? " if tag != self.calls.begin else ""
        openings = self.calls.openings(tools)
        if not openings:
            return [f"behind_tag: {space}calls", GAP]
        begin = "|".join(map(re.escape, openings)).replace("\\\n", r"\n")
        return [
            f"behind_tag: {space}calls | OTHER | mention behind_tag",
            rf"OTHER: /(.|\n)*/ & ~/\s*({begin})(.|\n)*/",
            f"mention[lazy]: OTHER {quoted(tag)}",
            GAP,
        ]


class _PlainParser:
    def __init__(
        self,
        splitter: ThinkingSplitter | None,
        content: ContentSplitter | None,
        calls: CallParser | None,
    ) -> None:
        self._splitter = splitter
        self._content = content
        self._calls = calls

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [] if self._calls is None else self._calls.calls

    def take_deltas(self) -> list[dict[str, Any]]:
        return [] if self._calls is None else self._calls.take_deltas()

    def push(self, text: str, *, last: bool = False) -> tuple[str, str]:
        reasoning = ""
        if self._splitter is not None:
            reasoning, text = self._splitter.push(text, last=last)
        if self._content is not None:
            text = self._content.push(text, last=last)
        if self._calls is not None:
            text = self._calls.push(text, last=last)
        return reasoning, text


HARMONY, ATEM = HarmonyFormat(), AtemFormat()


def answer_format(template: ChatTemplate, *, tools: bool) -> AnswerFormat:
    """How the family of a chat template answers, with or without tools."""
    return _format_of(template.source(tools=tools))


@lru_cache(8)
def _format_of(text: str) -> AnswerFormat:
    if harmony.is_harmony(text):
        return HARMONY
    if atem.is_atem(text):
        return ATEM
    in_system = re.search(r"message\[['\"]tools['\"]\]|message\.tools\b", text) is not None
    if re.search(r"\bif tools\b|(?<!['\"])\btools is ", text):  # it has a place of its own for them
        in_system = False
    return PlainFormat(call_format(text), thinking_tags(text), in_system, content_tags(text))


def _ids(tags: tuple[str, ...], tokenizer: Tokenizer) -> frozenset[int]:
    parts = (part for tag in tags for part in tokenizer.split_special(tag))
    return frozenset(part for part in parts if isinstance(part, int))


def effort_variables(
    effort: str | None, template: ChatTemplate, given: Mapping[str, Any]
) -> dict[str, Any]:
    """What a template gets for the reasoning effort that is asked for, beside what is given."""
    if effort is None:
        return dict(given)
    made: dict[str, Any] = {"reasoning_effort": effort}
    if STRENGTH in template.source():
        made[STRENGTH] = effort
    if effort == "none" and SWITCH in template.source():
        made[SWITCH] = False
    return made | dict(given)


def uses_effort(effort: str, template: ChatTemplate) -> bool:
    """Whether a template makes anything of a reasoning effort."""
    text = template.source()
    return "reasoning_effort" in text or STRENGTH in text or (effort == "none" and SWITCH in text)
