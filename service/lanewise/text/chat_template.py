"""Chat templates: which one a conversation needs, and what it gets.

A template is a program that came with a model. Compiling and rendering one, which only
``ChatTemplate.compile`` and ``render`` do, is bounded by nothing here: a server does both in
``lanewise.sandbox``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

# Raised by rendering: code that renders a template needs no import of the engine's files.
from lanewise.text.template_error import ChatTemplateError as ChatTemplateError

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]

# Names under which clients send a message's reasoning; templates read the first.
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


MAX_CHARACTERS = 1 << 20  # of a template; published ones have up to 60,000

NULL = object()  # of a content, for the few templates that ask whether it is none


class ChatTemplate:
    """A model's chat templates: one, or several by name of which ``default`` is the usual one."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self.sources = dict(templates)
        self.special_tokens = dict(special_tokens or {})
        self.habits: dict[Any, Any] = {}  # what ``lanewise.text.conversation`` found out
        self._compiled: dict[str, jinja2.Template] = {}

    @cached_property
    def digest(self) -> str:
        """Equal for equal templates."""
        parts = json.dumps([self.sources, self.special_tokens]).encode()
        return hashlib.blake2b(parts, digest_size=16).hexdigest()

    @property
    def names(self) -> list[str]:
        """The names of the templates."""
        return list(self.sources)

    def source(self, *, tools: bool = False) -> str:
        """Return the text of the template used with or without tools."""
        return self.sources[self._choose(tools)]

    @property
    def shown(self) -> str | None:
        """The text of the usual template; None if there is none that can be used."""
        try:
            return self.source()
        except ChatTemplateError:
            return None

    def check_lengths(self) -> None:
        """ChatTemplateError if one of the templates is too long to be looked at."""
        for name, text in self.sources.items():
            if len(text) > MAX_CHARACTERS:
                raise ChatTemplateError(
                    f"chat template {name!r} has {len(text)} characters; accepted: at most"
                    f" {MAX_CHARACTERS}"
                )

    def compile(self) -> None:
        """Compile all templates; ChatTemplateError if one cannot be compiled."""
        from lanewise.text.template_engine import compile_template

        self.check_lengths()
        for name, text in self.sources.items():
            if name not in self._compiled:
                self._compiled[name] = compile_template(name, text)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the prompt for a conversation; kwargs are further variables for the template."""
        return self.render_within(None, messages, tools, add_generation_prompt, kwargs)

    def render_within(
        self,
        most_characters: int | None,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        """As ``render``, but ChatTemplateError as soon as the text is longer than allowed."""
        from lanewise.text.template_engine import render_template

        if not messages:
            raise ChatTemplateError("messages is empty; at least one message is needed")
        self.compile()
        variables = {
            **self.special_tokens,
            **kwargs,
            "messages": [_prepared(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        variables.setdefault("documents", None)
        template = self._compiled[self._choose(tools is not None)]
        return render_template(template, variables, most_characters)

    def _choose(self, tools: bool) -> str:
        self.check_lengths()
        if tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" in self.sources:
            return "default"
        raise ChatTemplateError(
            f"the model has chat templates {', '.join(self.sources)}, but none named default"
        )


def _prepared(message: Message) -> dict[str, Any]:
    # Clients send nulls ("content": null beside tool_calls), which templates would print as None.
    kept = {key: value for key, value in message.items() if value is not None}
    if kept.get("content") is NULL:
        kept["content"] = None
    reasoning = next((kept[name] for name in REASONING_NAMES if name in kept), None)
    if reasoning is not None:
        kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
    return kept
