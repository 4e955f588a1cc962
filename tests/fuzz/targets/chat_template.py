"""Chat templates: any template with any of some conversations, compiled and rendered."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from tests.fuzz.reader import accept

GOLDEN = Path(__file__).parents[2] / "golden"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def conversations() -> list[dict[str, Any]]:
    """Those whose rendering is compared with transformers'."""
    found: dict[str, dict[str, Any]] = json.loads((GOLDEN / "conversations.json").read_text())
    return list(found.values())


def one_input(data: bytes) -> None:
    """The first byte says which conversation, the others are the template."""
    conversation = conversations()[data[0] % len(conversations())] if data else conversations()[0]
    try:
        template = ChatTemplate({"default": data[1:].decode("utf-8", "replace")}, TOKENS)
        text = template.render(
            conversation["messages"],
            conversation.get("tools"),
            conversation.get("add_generation_prompt", True),
            **conversation.get("kwargs", {}),
        )
        assert isinstance(text, str)
    except ChatTemplateError as error:
        accept(error)


def seeds(_folder: Path) -> Iterator[bytes]:
    """Templates that use the whole language, each with every conversation."""
    for path in sorted((GOLDEN / "templates").glob("*.jinja")):
        yield from (bytes([i]) + path.read_bytes() for i in range(len(conversations())))
    yield b"\x00{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}"
    yield b"\x01{{ tools | tojson(indent=2) }}{{ strftime_now('%d') }}"
    yield b"\x02{% macro f(x) %}{{ x }}{% endmacro %}{{ f(messages | length) }}"
    yield b"\x03{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a ~ raise_exception('x') }}"


def words() -> Iterator[bytes]:
    """Words of the language."""
    text = "{% %} {{ }} {%- -%} {# #} for in if else elif endif endfor set endset macro endmacro"
    text += (
        " filter endfilter call endcall generation endgeneration break continue namespace( range("
    )
    text += (
        " cycler( joiner( lipsum( dict( loop.index loop.previtem recursive | ~ ** // is not and or"
    )
    text += (
        " defined none string mapping sequence tojson trim join map( select( selectattr( groupby("
    )
    text += " batch( slice( sort unique reverse replace( format( default( indent( wordwrap( center("
    text += (
        " xmlattr urlize pprint random attr( __class__ messages tools self super() import include"
    )
    text += " .format( .join( .split( .items() [::-1] 'x' 10**9"
    yield from (word.encode() for word in text.split())
