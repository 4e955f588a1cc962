"""Templates checked and conversations rendered in a sandbox only for this, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lanewise.sandbox.lane import Limits, SandboxError
from lanewise.sandbox.pool import Sandbox, uncounted
from lanewise.sandbox.templates import TemplateService, pack_conversation
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError, Message
from lanewise.text.tokenizer import Tokenizer

T = TypeVar("T")

LIMITS = Limits(cpu_s=1.0, memory=128 << 20, answer=8 << 20)  # of one conversation
MAX_CHARACTERS = 1 << 20
DATE = {"date_string": "26 Jul 2024"}  # for templates that tell today's: ids must not depend on it


def encode_chats(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    chats: Sequence[Sequence[Message]],
    *,
    add_generation_prompt: bool = False,
) -> list[list[int]]:
    """Return the ids of whole conversations as a template writes them.

    With ``add_generation_prompt`` the beginning of an answer is behind each. ChatTemplateError as
    soon as the template refuses one or takes more than it may.
    """

    async def encode(templates: TemplateService) -> list[list[int]]:
        found = []
        for chat in chats:
            packed, mark = pack_conversation(
                *(tokenizer, template, list(chat), None, DATE),
                add_generation_prompt=add_generation_prompt,
                without_end=False,
                most_characters=MAX_CHARACTERS,
            )
            text = await templates.render(template, packed, client=0)
            found.append(tokenizer.encode_marked(text, mark))
        return found

    return asyncio.run(_within(Sandbox(LIMITS, LIMITS, LIMITS, uncounted()), encode))


def check_alone(template: ChatTemplate, sandbox: Sandbox) -> None:
    """ChatTemplateError if a template cannot be compiled, in a sandbox only for this."""
    asyncio.run(_within(sandbox, lambda templates: templates.check(template)))


async def _within(sandbox: Sandbox, work: Callable[[TemplateService], Awaitable[T]]) -> T:
    try:
        return await work(TemplateService(sandbox))
    except SandboxError as error:
        raise ChatTemplateError(str(error)) from None
    finally:
        await sandbox.close()
