"""Schemas and grammars that are deep, or dear to compile."""

import json
from functools import partial
from itertools import pairwise
from typing import Any

from loadtests.hostile.making import (
    CHAT,
    COMPLETION,
    DEEP,
    EITHER,
    REFUSED,
    Hostile,
    called,
    chat,
    tool,
    with_schema,
)


def reference_chain(links: int) -> dict[str, Any]:
    """A schema whose definitions each name the next."""
    names = [f"d{i}" for i in range(links)]
    chain = {a: {"$ref": f"#/$defs/{b}"} for a, b in pairwise(names)}
    defs = chain | {names[-1]: {"type": "string"}}
    return {"$defs": defs, "$ref": f"#/$defs/{names[0]}"}


def rule_chain(links: int, rule: str) -> str:
    """A grammar of rules that each name the next; ``rule`` has their names as {0} and {1}."""
    rules = [rule.format(f"r{i}", f"r{i + 1}") for i in range(links)]
    return "\n".join([rule.format("start" if ":" in rule else "root", "r0"), *rules])


def _lark(links: int) -> dict[str, Any]:
    return chat(guided_grammar=rule_chain(links, "{0}: {1}") + f'\nr{links}: "x"')


def _gbnf(links: int) -> dict[str, Any]:
    text = rule_chain(links, "{0} ::= {1}").replace("start ::=", "root ::=")
    return chat(grammar=text + f'\nr{links} ::= "x"')


def _nested(depth: int, opening: str, closing: str, inner: str = "") -> str:
    return opening * depth + inner + closing * depth


def _raw(before: str, nested: str, after: str) -> bytes:
    return (before + nested + after).encode()


def _nested_schema(depth: int) -> bytes:
    schema = _nested(depth, '{"items":', "}", "true")
    before = json.dumps(chat())[:-1] + ', "guided_json": '
    return _raw(before, schema, "}")


def _references(links: int) -> dict[str, Any]:
    return with_schema(reference_chain(links))


def _nested_regex(depth: int) -> dict[str, Any]:
    return chat(guided_regex=_nested(depth, "(", ")", "a"))


RECURSION = (
    *(
        Hostile(f"a schema of {n:,} references", CHAT, partial(_references, n), (400,))
        for n in (3_000, DEEP)
    ),
    # A million do not fit into a body of 8 MiB: that is a right answer too.
    Hostile(
        "a schema of 1,000,000 references",
        CHAT,
        lambda: with_schema(reference_chain(10**6)),
        REFUSED,
    ),
    *(Hostile(f"{n:,} Lark rules", CHAT, partial(_lark, n), REFUSED) for n in (3_000, DEEP, 10**6)),
    *(Hostile(f"{n:,} GBNF rules", CHAT, partial(_gbnf, n), REFUSED) for n in (3_000, DEEP)),
    Hostile("450 GBNF rules", CHAT, partial(_gbnf, 450), EITHER),
    *(
        Hostile(
            f"a regular expression nested {n:,} deep",
            CHAT,
            partial(_nested_regex, n),
            REFUSED,
        )
        for n in (3_000, DEEP, 10**6)
    ),
    Hostile(
        "a Lark rule nested 100,000 deep",
        CHAT,
        lambda: chat(guided_grammar=f"start: {_nested(DEEP, '(', ')', 'x')}".replace("x", '"x"')),
        REFUSED,
    ),
    *(
        Hostile(f"a schema nested {n:,} deep", CHAT, partial(_nested_schema, n), REFUSED)
        for n in (150, 1_000, DEEP, 10**6)
    ),
    Hostile(
        "a body nested 1,000,000 deep",
        COMPLETION,
        lambda: _nested(10**6, "[", "]").encode(),
        REFUSED,
    ),
    Hostile(
        "template variables nested 100,000 deep",
        CHAT,
        lambda: _raw(
            json.dumps(chat())[:-1] + ', "chat_template_kwargs": {"a": ',
            _nested(DEEP, "[", "]"),
            "}}",
        ),
        EITHER,
    ),
    Hostile(
        "arguments nested 100,000 deep",
        CHAT,
        lambda: chat(messages=called(_nested(DEEP, "[", "]"))),
        EITHER,
    ),
    Hostile(
        "a tool's parameters nested 1,000 deep",
        CHAT,
        lambda: _raw(
            json.dumps(chat())[:-1]
            + ', "tools": [{"type": "function", "function": {"name": "f", "parameters": ',
            _nested(1_000, '{"type":"object","properties":{"a":', "}}", "true"),
            "}}]}",
        ),
        EITHER,
    ),
    Hostile(
        "a tool's parameters of 3,000 references",
        CHAT,
        lambda: chat(tools=[tool(0, parameters=reference_chain(3_000))], tool_choice="required"),
        EITHER,
    ),
)


def optional_letters(count: int) -> str:
    """A regular expression whose automaton has as many states as there are subsets to be."""
    return "a?" * count + "a" * count


SLOW_GRAMMARS = (
    Hostile(
        "62,000 optional letters",
        CHAT,
        lambda: chat(guided_regex=optional_letters(62_000)),
        (400,),
        64,
    ),
    Hostile(
        "500 optional letters", CHAT, lambda: chat(guided_regex=optional_letters(500)), EITHER, 8
    ),
    Hostile(
        "a repeat of repeats",
        CHAT,
        lambda: chat(guided_regex="((a{1,1000}){1,1000}){1,1000}"),
        EITHER,
        8,
    ),
    Hostile(
        "(x+x+)+y of a megabyte", CHAT, lambda: chat(guided_regex="(x+x+)+y" * 31_000), EITHER, 4
    ),
    Hostile(
        "a class of all letters, often",
        CHAT,
        lambda: chat(guided_regex=r"(\p{L}{0,50}\w{0,50}){0,50}" * 20),
        EITHER,
        8,
    ),
    Hostile(
        "100,000 choices",
        CHAT,
        lambda: chat(guided_choice=[f"choice {i}" for i in range(DEEP)]),
        EITHER,
        4,
    ),
    Hostile(
        "a schema of 5,000 properties",
        CHAT,
        lambda: with_schema(
            {
                "type": "object",
                "properties": {
                    f"p{i}": {"type": "string", "pattern": f"^a{{0,{i % 50}}}$"}
                    for i in range(5_000)
                },
            }
        ),
        EITHER,
        4,
    ),
    Hostile("anyOf of anyOf", CHAT, lambda: with_schema(_doubled(14)), EITHER, 4),
    Hostile(
        "ten million items",
        CHAT,
        lambda: with_schema({"type": "array", "minItems": 10**7, "maxItems": 10**8}),
        EITHER,
        4,
    ),
    Hostile(
        "an ambiguous Lark grammar",
        CHAT,
        lambda: chat(guided_grammar='start: a\na: a a | "x" | '),
        EITHER,
        8,
    ),
    Hostile(
        "a hundred patterns in a tool",
        CHAT,
        lambda: chat(
            tools=[
                tool(
                    i,
                    parameters={
                        "type": "object",
                        "properties": {
                            "a": {"type": "string", "pattern": f"^({optional_letters(40)})$"}
                        },
                    },
                )
                for i in range(100)
            ],
            tool_choice="required",
        ),
        EITHER,
        4,
    ),
)


def _doubled(times: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for i in range(times):
        schema = {"anyOf": [schema, {"type": "array", "items": schema, "minItems": i}]}
    return schema
