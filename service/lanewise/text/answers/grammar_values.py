"""Values that obey a grammar of their own, in the rules of calls."""

from __future__ import annotations

import json
import re
from typing import Any

from lanewise.text.answers.any_order import in_any_order
from lanewise.text.answers.calls import Parameters, argument_schema
from lanewise.text.answers.rules import quoted
from lanewise.text.answers.values import TextGrammar
from lanewise.text.grammar import rule_of_json
from lanewise.text.quoted_grammar import quoted_grammar


def arguments_rule(parameters: Parameters, n_functions: int = 1) -> str:
    """The JSON of a function's arguments, one of ``n_functions`` in the grammar.

    A function has one argument if that is a text with a grammar. GrammarError if the parameters
    cannot be used.
    """
    properties = (parameters or {}).get("properties")
    if isinstance(properties, dict) and len(properties) == 1:
        ((key, schema),) = properties.items()
        if TextGrammar.of(schema) is not None:
            before = f"{{{json.dumps(key, ensure_ascii=False)}: "
            return f"{quoted(before)} {json_rule(schema)} {quoted('}')}"
    schema = argument_schema(parameters)
    whole = rule_of_json(schema)  # what no grammar can enforce is an error in both
    free = in_any_order(schema, n_functions)
    return whole if free is None else _nested(free)


def json_rule(schema: Any) -> str:
    """The JSON of one value."""
    grammar = TextGrammar.of(schema)
    if grammar is None or grammar.syntax == "regex":  # which is the schema's pattern too
        return rule_of_json(schema)
    quote = quoted('"')
    return f"{quote} {_nested(quoted_grammar(grammar.definition))} {quote}"


def text_rule(grammar: TextGrammar) -> str:
    """A text as it is."""
    if grammar.syntax == "lark":
        return _nested(grammar.definition)
    return f"/{in_slashes(grammar.definition)}/"


def in_slashes(pattern: str) -> str:
    """A regular expression as it is written between slashes."""
    return re.sub(r"(\\.)|(/)|(\n)", _in_slashes, pattern, flags=re.DOTALL)


def without_grammars(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters as models get to see them."""
    properties = parameters.get("properties")
    if not isinstance(properties, dict) or not any(map(TextGrammar.of, properties.values())):
        return parameters
    shown = {
        key: value if TextGrammar.of(value) is None else {"type": "string"}
        for key, value in properties.items()
    }
    return {**parameters, "properties": shown}


def _in_slashes(match: re.Match[str]) -> str:
    return match[1] or (r"\/" if match[2] else r"\n")


def _nested(rules: str) -> str:
    return f"%lark {{\n{rules}\n}}"
