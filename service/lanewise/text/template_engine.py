"""The jinja environment of chat templates: what models expect of it, in a sandbox of names.

It keeps templates from reaching into Python. How long they run and how much memory they take is for
the process to limit in which this runs. Compiling one computes nothing of it: what it takes is in
proportion to its text, where the engine alone would compute all that has no variables in it, and
take what that lacked memory for as something to be computed later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from lanewise.text.template_error import ChatTemplateError, TextTooLongError


class TooLongError(Exception):
    """A template writes more than can be used."""


class _GenerationTag(Extension):
    """Accepts the tag that marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _NothingComputed(CodeGenerator):
    """Writes constants as they stand in the template; what is made of them is made when it runs."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_EvalContextModifier(  # noqa: N802 (jinja2 calls it so)
        self, node: nodes.EvalContextModifier, frame: Frame
    ) -> None:
        if all(isinstance(option.value, nodes.Const) for option in node.options):
            return super().visit_EvalContextModifier(node, frame)
        raise TemplateSyntaxError("autoescape takes true or false", node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _NothingComputed


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
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        extensions=[_GenerationTag, loopcontrols],
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


def compile_template(name: str, text: str) -> jinja2.Template:
    """A template ready to render; ChatTemplateError if it cannot be compiled."""
    try:
        return _environment().from_string(text)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise ChatTemplateError(f"chat template {name!r}{where}: {error}") from error
    except RecursionError as error:
        raise ChatTemplateError(f"chat template {name!r}: nested too deeply") from error
    except MemoryError:
        raise
    except Exception as error:  # such as a number of 5,000 digits
        reason = f"{type(error).__name__}: {error}"
        raise ChatTemplateError(f"chat template {name!r}: {reason}") from error


def render_template(
    template: jinja2.Template, variables: dict[str, Any], most_characters: int | None
) -> str:
    """The text of a template; ChatTemplateError if it has none, or a longer one."""
    pieces: list[str] = []
    length = 0
    try:
        for piece in template.generate(**variables):
            pieces.append(piece)
            length += len(piece)
            if most_characters is not None and length > most_characters:
                raise TooLongError
        return "".join(pieces)
    except TooLongError:
        raise TextTooLongError(
            f"the model's chat template makes more than {most_characters} characters of these"
            " messages, which no context of this server holds"
        ) from None
    except TemplateError as error:
        raise ChatTemplateError(f"the model's chat template refuses this: {error}") from error
    except RecursionError as error:
        raise ChatTemplateError("the model's chat template recurses too deeply") from error
    except MemoryError:
        raise
    except Exception as error:  # templates are programs: they can fail in any way Python can
        raise ChatTemplateError(
            f"the model's chat template cannot render these messages:"
            f" {type(error).__name__}: {error}"
        ) from error
