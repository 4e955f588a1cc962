"""Chat templates with one of some conversations each: as workers render them, or in the sandbox."""

import asyncio
import atexit
import json
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hostile_texts import CONSTANT_TEMPLATES
from lanewise.api.shared.budgets import TextBudgets
from lanewise.sandbox.pool import Sandbox, uncounted
from lanewise.sandbox.templates import TemplateService, pack_conversation
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from tests.fuzz.limits import MAX_BYTES, most_memory
from tests.fuzz.reader import accept
from toy_tokenizer import toy_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TIME_S = 0.2
MAX_CHARACTERS = 1 << 16
HUGE = (
    "*",
    "center",
    "just",
    "zfill",
    "indent",
    "wrap",
    "lipsum",
    "format",
    "fill",
    "batch",
    "slice",
)


class TooLongError(BaseException):
    """A template that goes on: only the sandbox ends such."""


@cache
def conversations() -> list[dict[str, Any]]:
    """Those whose rendering is compared with transformers'."""
    ChatTemplate({"default": ""}).compile()  # loads the engine, before any time is counted
    found: dict[str, dict[str, Any]] = json.loads((GOLDEN / "conversations.json").read_text())
    return list(found.values())


def _render_here(template: ChatTemplate, conversation: dict[str, Any]) -> None:
    """What a worker does; here it is ended by a signal."""

    def stop(*_: object) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, TIME_S)
    try:
        text = template.render_within(
            MAX_CHARACTERS,
            conversation["messages"],
            conversation.get("tools"),
            conversation.get("add_generation_prompt", True),
            conversation.get("kwargs", {}),
        )
        assert len(text) <= MAX_CHARACTERS
    except TooLongError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@cache
def _service() -> tuple[asyncio.AbstractEventLoop, TemplateService, Sandbox]:
    sandbox = TextBudgets(template_timeout_s=TIME_S).sandbox(MAX_CHARACTERS, uncounted())
    loop = asyncio.new_event_loop()
    atexit.register(lambda: loop.run_until_complete(sandbox.close()))
    return loop, TemplateService(sandbox), sandbox


def _render_in_sandbox(template: ChatTemplate, conversation: dict[str, Any]) -> None:
    loop, service, sandbox = _service()
    packed, _ = pack_conversation(
        *(toy_tokenizer(), template, conversation["messages"], conversation.get("tools")),
        conversation.get("kwargs", {}),
        add_generation_prompt=conversation.get("add_generation_prompt", True),
        without_end=False,
        most_characters=MAX_CHARACTERS,
    )
    loop.run_until_complete(asyncio.wait_for(service.check(template), 8))
    rendered = loop.run_until_complete(asyncio.wait_for(service.render(template, packed, 0), 8))
    assert (pid := sandbox.zygote_pid) is not None
    assert most_memory(pid) < MAX_BYTES, "the process that workers are forked from has grown"
    assert isinstance(rendered, str)


def one_input(data: bytes) -> None:
    """The first byte says which conversation and where, the others are the template."""
    choice = data[0] if data else 0
    conversation = conversations()[choice % 32 % len(conversations())]
    text = data[1:].decode("utf-8", "replace")
    template = ChatTemplate({"default": text}, TOKENS)
    # What can take all memory at once is for the sandbox alone, and some of the others.
    in_sandbox = choice >= 248 or any(word in text for word in HUGE)
    try:
        (_render_in_sandbox if in_sandbox else _render_here)(template, conversation)
    except ChatTemplateError as error:
        accept(error)


def seeds(_folder: Path) -> Iterator[bytes]:
    """Templates that use the whole language, each with every conversation."""
    for path in sorted((GOLDEN / "templates").glob("*.jinja")):
        yield from (bytes([i]) + path.read_bytes() for i in range(len(conversations())))
        yield b"\xff" + path.read_bytes()
    yield b"\x00{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}"
    yield b"\x01{{ tools | tojson(indent=2) }}{{ strftime_now('%d') }}"
    yield b"\x02{% macro f(x) %}{{ x }}{% endmacro %}{{ f(messages | length) }}"
    yield b"\x03{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a ~ raise_exception('x') }}"
    yield b"\x00{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    yield from (b"\xff" + text.encode() for text in CONSTANT_TEMPLATES.values())
    yield b"\x00{{ 'a' * 10**10 }}"


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
