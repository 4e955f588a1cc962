"""Renders chat templates in a sandbox, with the functions, filters and tags that models expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Message = Mapping[str, Any]

# Names under which clients send a message's reasoning; templates read the first.
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


class ChatTemplateError(Exception):
    """A chat template cannot be compiled, or refuses these messages; the message says why."""


class ChatTemplate:
    """A model's chat templates: one, or several by name of which ``default`` is the usual one."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self._sources = dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._compiled = {name: _compile(name, text) for name, text in templates.items()}

    @property
    def names(self) -> list[str]:
        """The names of the templates."""
        return list(self._sources)

    def source(self, *, tools: bool = False) -> str:
        """Return the text of the template used with or without tools."""
        return self._sources[self._choose(tools)]

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the prompt for a conversation; kwargs are further variables for the template."""
        if not messages:
            raise ChatTemplateError("messages is empty; at least one message is needed")
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": [_prepared(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        variables.setdefault("documents", None)
        try:
            return self._compiled[self._choose(tools is not None)].render(**variables)
        except TemplateError as error:
            raise ChatTemplateError(f"the model's chat template refuses this: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("the model's chat template recurses too deeply") from error
        except Exception as error:  # templates are programs: they can fail in any way Python can
            raise ChatTemplateError(
                f"the model's chat template cannot render these messages:"
                f" {type(error).__name__}: {error}"
            ) from error

    def _choose(self, tools: bool) -> str:
        if tools and "tool_use" in self._sources:
            return "tool_use"
        if "default" in self._sources:
            return "default"
        raise ChatTemplateError(
            f"the model has chat templates {', '.join(self._sources)}, but none named default"
        )


def _prepared(message: Message) -> dict[str, Any]:
    # Clients send nulls ("content": null beside tool_calls), which templates would print as None.
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in REASONING_NAMES if name in kept), None)
    if reasoning is not None:
        kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
    return kept


class _GenerationTag(Extension):
    """Accepts the tag that marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Dict:
    """The dict of templates, without the class's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """A namespace that stores no underscore names, which could reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot store {name!r}: it starts with an underscore")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which a prompt must not have.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    environment.globals.update(functions)
    return environment


def _compile(name: str, text: str) -> jinja2.Template:
    try:
        return _environment().from_string(text)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise ChatTemplateError(f"chat template {name!r}{where}: {error}") from error
    except RecursionError as error:
        raise ChatTemplateError(f"chat template {name!r}: nested too deeply") from error
