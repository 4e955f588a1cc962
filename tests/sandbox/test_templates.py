"""Templates render in the sandbox as they do elsewhere, one after the other in the same worker."""

import asyncio
import json
from pathlib import Path

import pytest

from data_files import every
from hostile_texts import CONSTANT_TEMPLATES
from lanewise.api.shared.budgets import TextBudgets
from lanewise.sandbox.lane import Limits, SandboxError
from lanewise.sandbox.pool import uncounted
from lanewise.sandbox.templates import TemplateService, pack_conversation
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from toy_tokenizer import toy_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
CONVERSATIONS = json.loads((GOLDEN / "conversations.json").read_text())
RENDERED = json.loads((GOLDEN / "chat_templates.json").read_text(encoding="utf-8"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Unmarked:
    """A tokenizer whose vocabulary has no control tokens."""

    def mark_chat(self, messages, tools, variables):
        return [messages, tools, variables], "\ufdd0"


def here() -> dict[str, str]:
    """The templates that are here, by name."""
    own = {path.name: path for path in (GOLDEN / "templates").iterdir()}
    files = every("templates/*.jinja") | own
    return {name: path.read_text("utf-8") for name, path in files.items() if name in RENDERED}


async def render_all(texts: dict[str, str]) -> dict[str, dict[str, str | None]]:
    sandbox = TextBudgets().sandbox(1 << 20, uncounted())
    service = TemplateService(sandbox)

    async def render(text: str, conversation: dict) -> str | None:
        template = ChatTemplate({"default": text}, TOKENS)
        packed, _ = pack_conversation(
            *(Unmarked(), template, conversation["messages"], conversation.get("tools")),
            {"date_string": "26 Jul 2024"} | conversation.get("kwargs", {}),
            add_generation_prompt=conversation.get("add_generation_prompt", True),
            without_end=False,
            most_characters=1 << 20,
        )
        try:
            return await service.render(template, packed, client=0)
        except ChatTemplateError:
            return None

    try:
        return {
            name: {key: await render(text, each) for key, each in CONVERSATIONS.items()}
            for name, text in texts.items()
        }
    finally:
        await sandbox.close()


# What templates would refuse or lose is said in other words: see tests/text/test_conversation.py.
CALLS = {"tool calls", "parallel calls", "calls with reasoning"}
BRIDGED = {
    "refuses.jinja": {"system", "reasoning content", "calls with reasoning"},
    "tags.jinja": {"system", "reasoning content", *CALLS},
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja": CALLS,
    "google-gemma-2-2b-it.jinja": {"system", "reasoning content", "two users", *CALLS},
    "microsoft-Phi-3.5-mini-instruct.jinja": CALLS,
    "meta-llama-Llama-3.1-8B-Instruct.jinja": {"parallel calls"},
    "meta-llama-Llama-3.2-3B-Instruct.jinja": {"parallel calls"},
    # It leaves out the system's words where no user speaks last.
    "mistralai-Mistral-Nemo-Instruct-2407.jinja": {
        *("two users", "tool calls", "reasoning content", "calls with reasoning"),
    },
}


def test_every_template_renders_every_conversation_as_transformers_does():
    texts = here()
    assert texts
    for name, found in asyncio.run(render_all(texts)).items():
        others = {key for key in CONVERSATIONS if found[key] != RENDERED[name][key]}
        assert others == BRIDGED.get(name, set()), name
        assert None not in [found[key] for key in others]


@pytest.mark.parametrize("content", ["\ud83d", "\x00\u2028\ufdd1", "é😀" * 50_000])
def test_any_text_arrives_as_it_was(content):
    template = ChatTemplate({"default": "{{ messages[0].content }}"})

    async def render() -> str:
        sandbox = TextBudgets().sandbox(1 << 20, uncounted())
        messages = [{"role": "user", "content": content}]
        packed, mark = pack_conversation(
            *(toy_tokenizer(), template, messages, None, {}),
            add_generation_prompt=True,
            without_end=False,
            most_characters=1 << 20,
        )
        try:
            text = await TemplateService(sandbox).render(template, packed, client=0)
        finally:
            await sandbox.close()
        return text.replace(mark, "")

    assert asyncio.run(render()) == content


def most_memory(pid: int) -> int:
    """Bytes that a process has had at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_no_constant_of_a_template_is_computed_where_there_is_no_limit():
    async def checked() -> int:
        sandbox = TextBudgets().sandbox(1 << 20, uncounted())
        service = TemplateService(sandbox)
        try:
            for text in CONSTANT_TEMPLATES.values():
                template = ChatTemplate({"default": text})
                await service.check(template)
                packed, _ = pack_conversation(
                    *(Unmarked(), template, [{"role": "user", "content": "hi"}], None, {}),
                    add_generation_prompt=True,
                    without_end=False,
                    most_characters=1 << 20,
                )
                with pytest.raises(ChatTemplateError):
                    await service.render(template, packed, client=0)
            assert sandbox.zygote_pid is not None
            return most_memory(sandbox.zygote_pid)
        finally:
            await sandbox.close()

    assert asyncio.run(checked()) < 128 << 20


def prepared(text: str) -> dict[str, dict]:
    """What ``Sandbox.prepare`` gets of a template."""
    return {f"template {len(text)}": {"sources": {"default": text}, "special_tokens": {}}}


ROOMY = Limits(10.0, 1 << 30, 1)
LONG = "{% if messages %}{{ messages[0].content }}{% endif %}" * 19_000  # seconds to compile
LARGE = "a " * 500_000  # a tenth of one, and some copies of it


def test_what_every_worker_shall_have_is_made_within_limits_too():
    async def refused(text: str, limits: Limits) -> tuple[str, bool]:
        sandbox = TextBudgets().sandbox(1 << 20, uncounted())
        try:
            await sandbox.prepare(prepared("a"), ROOMY)
            before = sandbox.zygote_pid
            with pytest.raises(SandboxError) as caught:
                await sandbox.prepare(prepared(text), limits)
            await sandbox.prepare(prepared("bc"), ROOMY)
            return str(caught.value), sandbox.zygote_pid == before
        finally:
            await sandbox.close()

    said, lives = asyncio.run(refused(LARGE, Limits(10.0, 2 << 20, 1)))
    assert "needs more than 2 MiB" in said
    assert lives
    _, lives = asyncio.run(refused(LONG, Limits(0.05, 1 << 30, 1)))
    assert not lives  # another has begun
