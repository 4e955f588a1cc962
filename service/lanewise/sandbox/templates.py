"""Chat templates in the sandbox: programs that come with a model, fed with what clients send."""

from collections.abc import Mapping, Sequence
from typing import Any

from lanewise.sandbox.lane import SandboxError, pack_job
from lanewise.sandbox.pool import Sandbox
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError, Message
from lanewise.text.image_parts import ImageMarks
from lanewise.text.tokenizer import Tokenizer

# A compiled template that is larger, or took longer to make, is made by each worker that needs it.
LARGEST_KEPT_BYTES = 16 << 20
MAX_KEPT_S = 0.3


class TemplateService:
    """Renders conversations."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._failures: dict[str, str] = {}  # why a template can never be used

    async def check(self, template: ChatTemplate) -> None:
        """ChatTemplateError if a template cannot be compiled; ``render`` says so from then on."""
        job = pack_job("check", {"template": _key(template)})
        try:
            template.check_lengths()
            took = await self._run(template, job, client=0)
        except ChatTemplateError as error:
            self._failures[template.digest] = str(error)
            raise
        if took["n_bytes"] <= LARGEST_KEPT_BYTES and took["cpu_s"] <= MAX_KEPT_S:
            await self._sandbox.prepare(_set_up(template), self._sandbox.templates.limits)

    async def render(self, template: ChatTemplate, packed: bytes, client: int) -> str:
        """The text of a conversation that ``pack_conversation`` packed.

        ChatTemplateError if there is none, SandboxError if there is no room for the work now.
        """
        if failure := self._failures.get(template.digest):
            raise ChatTemplateError(failure)
        text: str = await self._run(template, packed, client)
        return text

    async def _run(self, template: ChatTemplate, packed: bytes, client: int) -> Any:
        try:
            return await self._sandbox.templates.run(packed, _set_up(template), client)
        except SandboxError as error:
            if error.reason in ("busy", "stopped"):
                raise
            told = str(error)
            if error.reason != "refused":
                told = f"the model's chat template cannot be used: {told}"
            raise ChatTemplateError(told) from None


def pack_conversation(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
    without_end: bool,
    most_characters: int,
    images: ImageMarks | None = None,
) -> tuple[bytes, str]:
    """What a worker needs to render a conversation, and the tokenizer's mark in it.

    ``images`` is what stands for images in it. ChatTemplateError if it cannot be sent there.
    """
    try:
        (messages, tools, variables), mark = tokenizer.mark_chat(messages, tools, variables)
        payload = {
            "template": _key(template),
            "messages": messages,
            "tools": tools,
            "variables": variables,
            "add_generation_prompt": add_generation_prompt,
            "continued": without_end,
            "most_characters": most_characters,
            "images": None if images is None else [images.mark, images.written_as],
        }
        return pack_job("render", payload), mark
    except RecursionError:
        raise ChatTemplateError("nested too deeply") from None
    except ValueError as error:  # such as an integer of 5,000 digits
        raise ChatTemplateError(str(error)) from None


def _key(template: ChatTemplate) -> str:
    return f"template {template.digest}"


def _set_up(template: ChatTemplate) -> dict[str, Any]:
    described = {"sources": template.sources, "special_tokens": template.special_tokens}
    return {_key(template): described}
