"""Chat templates render as transformers renders them, and fail in one way."""

from __future__ import annotations

import importlib.util
import json
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import topics
from data_files import FOLDERS, data
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError

GOLDEN = Path(__file__).parents[1] / "golden"
CONVERSATIONS = json.loads((GOLDEN / "conversations.json").read_text())
RENDERED = json.loads((GOLDEN / "chat_templates.json").read_text(encoding="utf-8"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = [{"role": "user", "content": "Hello"}]


def template_text(name: str) -> str:
    own = GOLDEN / "templates" / name
    return (own if own.is_file() else data(f"templates/{name}")).read_text(encoding="utf-8")


def render(text: str, conversation: dict[str, Any]) -> str | None:
    try:
        return ChatTemplate({"default": text}, TOKENS).render(
            conversation["messages"],
            conversation.get("tools"),
            conversation.get("add_generation_prompt", True),
            **{"date_string": "26 Jul 2024"} | conversation.get("kwargs", {}),
        )
    except ChatTemplateError:
        return None


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", RENDERED)
def test_renders_as_transformers_does(name: str, conversation: str) -> None:
    found = render(template_text(name), CONVERSATIONS[conversation])
    assert found == RENDERED[name][conversation]


@pytest.mark.reference
def test_goldens_are_what_transformers_renders_now() -> None:
    if importlib.util.find_spec("transformers") is None:
        topics.skip("reference", "transformers is not installed")
    folders = [GOLDEN / "templates", *(folder / "templates" for folder in FOLDERS)]
    live = load(GOLDEN / "make_chat_templates.py").render_all(folders)
    assert live == {name: RENDERED[name] for name in live}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_refusal_carries_the_templates_own_words() -> None:
    template = ChatTemplate({"default": template_text("refuses.jinja")})
    with pytest.raises(ChatTemplateError, match="no system message, please"):
        template.render([{"role": "system", "content": "x"}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% if %}", "chat template 'default' at line 1"),
        ("\n{{ messages | nonsense }}", "chat template 'default' at line 2"),
    ],
)
def test_template_that_does_not_compile_is_explained(text: str, message: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate({"default": text}).compile()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[3].content.x }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns._secret = 1 %}",
        "{{ namespace(_secret=1) }}",
        "{{ dict.__class__.__mro__ }}",
    ],
)
def test_whatever_a_template_does_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate({"default": text}).render(HELLO)


def test_no_messages_is_an_error() -> None:
    with pytest.raises(ChatTemplateError, match="at least one message"):
        ChatTemplate({"default": "x"}).render([])


def test_template_for_tools_is_used_with_tools_only() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools) == "tools"
    assert template.source(tools=True) == "tools"


def test_without_a_default_template_the_names_are_listed() -> None:
    with pytest.raises(ChatTemplateError, match="a, b, but none named default"):
        ChatTemplate({"a": "x", "b": "y"}).render(HELLO)


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": None, "reasoning": "r"}]
    ChatTemplate({"default": "{{ messages[0] }}"}).render(messages)
    assert messages == [{"role": "user", "content": None, "reasoning": "r"}]


def test_today_is_told() -> None:
    days = {datetime.now().strftime("%Y-%m-%d")}
    found = ChatTemplate({"default": "{{ strftime_now('%Y-%m-%d') }}"}).render(HELLO)
    days.add(datetime.now().strftime("%Y-%m-%d"))
    assert found in days


def test_nothing_a_conversation_says_is_template_code() -> None:
    messages = [{"role": "user", "content": "{{ 1 + 1 }}{% raw %}"}]
    text = ChatTemplate({"default": "{{ messages[0].content }}"}).render(messages)
    assert text == "{{ 1 + 1 }}{% raw %}"
