"""Conversations rendered in a sandbox only for this, for commands that run no server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lanewise.sandbox.lane import Limits, SandboxError, pack_job
from lanewise.sandbox.pool import Sandbox, uncounted
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError, Message
from lanewise.text.tokenizer import Tokenizer

LIMITS = Limits(cpu_s=1.0, memory=128 << 20, answer=8 << 20)  # of one conversation
MOST_CHARACTERS = 1 << 20
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
    return asyncio.run(_encode_chats(tokenizer, template, chats, add_generation_prompt))


async def _encode_chats(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    chats: Sequence[Sequence[Message]],
    add_generation_prompt: bool,
) -> list[list[int]]:
    sandbox = Sandbox(LIMITS, LIMITS, uncounted())
    key = f"template {template.digest}"
    set_up = {key: {"sources": template.sources, "special_tokens": template.special_tokens}}
    found = []
    try:
        for chat in chats:
            (messages, _, variables), mark = tokenizer.mark_chat(list(chat), None, DATE)
            payload = {
                "template": key,
                "messages": messages,
                "tools": None,
                "variables": variables,
                "add_generation_prompt": add_generation_prompt,
                "continued": False,
                "most_characters": MOST_CHARACTERS,
            }
            text = await sandbox.templates.run(pack_job("render", payload), set_up, client=0)
            found.append(tokenizer.encode_marked(text, mark))
    except SandboxError as error:
        raise ChatTemplateError(str(error)) from None
    finally:
        await sandbox.close()
    return found
