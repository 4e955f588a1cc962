"""The prompts behind which labels and other continuations are scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lanewise.api.conversations import Message
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import NO_TOOLS, Conversation
from lanewise.api.generation.call import Call
from lanewise.api.generation.measuring import check_ids, check_size
from lanewise.api.generation.rendering import form_of, render_chat
from lanewise.text.pieces import Bounds

WITHOUT_REASONING = "none"


async def chat_prompt(
    call: Call[Any], messages: Sequence[Message], variables: dict[str, Any], param: str
) -> list[int]:
    """A conversation up to where the content of its answer begins.

    An answer with reasoning has none here: the template is asked for none, reasoning that it begins
    all the same is ended at once, and what a family writes before content is there.
    """
    call.state.request_budgets.check_messages(messages, param)
    for i, message in enumerate(messages):
        if message.images:
            name = f"{param}[{i}].content"
            raise BadRequestError(f"{name}: images are not read here; accepted: text", param=name)
    form = form_of(Conversation(messages=messages, param=param), NO_TOOLS, call.state)
    chat = Conversation(
        messages=messages,
        variables=variables,
        effort=None if form.efforts else WITHOUT_REASONING,
        param=param,
    )
    bounds = Bounds(most=call.state.max_model_len, room=call.hold)
    prompt, end = await render_chat(call, chat, NO_TOOLS, form, bounds)
    before = form.before_content(form.start_of(end, None))
    if not before:
        return prompt.ids
    return prompt.ids + call.state.tokenizer.encode(before, add_bos=False, parse_special=True)


async def text_prompt(call: Call[Any], prompt: str | list[int], param: str) -> list[int]:
    """A text as it is, or token ids."""
    state = call.state
    if not isinstance(prompt, str):
        check_ids(prompt, state.tokenizer.vocab_size, param)
        return prompt
    check_size(len(prompt), state.max_model_len, param)
    bounds = Bounds(most=state.max_model_len, room=call.hold)
    encode = partial(
        state.tokenizer.encode, prompt, add_bos=True, parse_special=True, bounds=bounds
    )
    return await state.workers.read(len(prompt), encode)


async def continuation_ids(
    call: Call[Any], given: Sequence[str | list[int]], param: str
) -> list[list[int]]:
    """What follows a prompt, as tokens: of a text those that it has behind other text.

    Names of control tokens are text. An empty one has no probability, and is refused.
    """
    tokenizer, most = call.state.tokenizer, call.state.max_model_len

    def made() -> list[list[int]]:
        found = []
        for place, one in enumerate(given):
            name = f"{param}[{place}]"
            if isinstance(one, str):
                check_size(len(one), most, name)
                ids = tokenizer.encode_behind(one, Bounds(most=most, room=call.hold))
            else:
                check_ids(one, tokenizer.vocab_size, name)
                ids = one
            if not ids:
                raise BadRequestError(f"{name}: it has no tokens", param=name)
            found.append(ids)
        return found

    return await call.state.workers.read(call.size, made)
