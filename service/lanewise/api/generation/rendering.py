"""From messages or texts to what the model gets: templates, tokens, and how an answer begins."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lanewise.api.conversations import Tool
from lanewise.api.errors import BadRequestError, ContextLengthExceededError, UnavailableError
from lanewise.api.generation.ask import (
    Ask,
    Conversation,
    Illustrated,
    Infill,
    Prompts,
    ToolUse,
)
from lanewise.api.generation.call import Call
from lanewise.api.generation.dialect import Prompt
from lanewise.api.generation.infilling import read_infill
from lanewise.api.generation.leaving import while_connected
from lanewise.api.generation.measuring import check_count, check_ids, check_size, room_of
from lanewise.api.generation.shortening import shorter
from lanewise.api.shared.budgets import MAX_CHARACTERS, RETRY_AFTER_S
from lanewise.api.shared.images import NO_IMAGES, TEXT_ONLY, Images, refuse_images
from lanewise.api.shared.request_budgets import text_size
from lanewise.api.shared.state import ServerState
from lanewise.sandbox.images import ReadImage
from lanewise.sandbox.lane import SandboxError
from lanewise.sandbox.templates import pack_conversation
from lanewise.text.answers.families import (
    AnswerFormat,
    answer_format,
    effort_variables,
    uses_effort,
)
from lanewise.text.answers.grammar_values import without_grammars
from lanewise.text.answers.thinking import Start
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.control_tokens import choose_mark
from lanewise.text.image_parts import ImageMarks
from lanewise.text.pieces import Bounds
from lanewise.text.turns import without_session

# What a template gets from elsewhere, or what Python would mistake for it.
RESERVED = {"messages", "tools", "add_generation_prompt", "chat_template", "self"}
END_SIZE = 256  # characters at the end of a prompt that show how its answer begins


class Rendered(NamedTuple):
    """What the model continues, and how it answers."""

    prompts: list[Prompt]
    form: AnswerFormat | None = None  # of a conversation's answers; None: text
    start: Start = Start.CONTENT


async def render(
    call: Call[Ask], bounds: Bounds | None = None, *, wants_pixels: bool = True
) -> Rendered:
    """The prompts of a request, as long as it wants them.

    Without ``bounds`` of a prompt that is too long only as much as shows that it is. To count
    tokens pixels are not needed.
    """
    rendered = await _render(call, bounds or _bounds(call), wants_pixels)
    if call.ask.last_prompt_tokens is None:
        return rendered
    return rendered._replace(prompts=_cut(rendered.prompts, call))


def _cut(prompts: list[Prompt], call: Call[Ask]) -> list[Prompt]:
    """The ends of prompts."""
    ask, limit = call.ask, call.state.max_model_len
    most = ask.last_prompt_tokens or 0
    if most > limit:
        raise BadRequestError(
            f"truncate_prompt_tokens: {most} is more than the context has; accepted: -1, and 1 to"
            f" {limit}",
            param="truncate_prompt_tokens",
        )
    if most == -1:
        asked = ask.ending.max_tokens
        most = max(1, limit - (room_of(asked, limit) if asked else 1))
    if any(prompt.pictures and len(prompt.ids) > most for prompt in prompts):
        raise BadRequestError(
            "truncate_prompt_tokens: a prompt with images cannot be cut",
            param="truncate_prompt_tokens",
        )
    return [prompt if len(prompt.ids) <= most else Prompt(prompt.ids[-most:]) for prompt in prompts]


async def _render(call: Call[Ask], bounds: Bounds, wants_pixels: bool) -> Rendered:
    ask, state = call.ask, call.state
    prompts = _prompts_of(ask, state)
    if prompts is not None:
        images = await _images_of_prompts(call, prompts)
        read = partial(read_prompts, call, prompts, bounds, images)
        return Rendered(await state.workers.read(call.size, read))
    assert isinstance(ask.input, Conversation)
    form = form_of(ask.input, ask.tools, state)
    _check_thinking(call, ask.input, form)
    images = await images_of(call, ask.input, wants_pixels=wants_pixels)
    if images and ask.shown.prompt_logprobs is not None:
        raise BadRequestError(
            "prompt_logprobs: a prompt with images has none", param="prompt_logprobs"
        )
    prompt, end = await _render_fitting(call, ask.input, form, bounds, images)
    return Rendered([prompt], form, form.start_of(end, ask.input.continued))


async def _render_fitting(
    call: Call[Ask], chat: Conversation, form: AnswerFormat, bounds: Bounds, images: Images
) -> tuple[Prompt, str]:
    """``render_chat``, without as few of the oldest messages as can be if all are too long."""
    ask, limit = call.ask, call.state.max_model_len
    if chat.drops_oldest:
        bounds = Bounds(most=limit, room=bounds.room)

    async def made_of(chat: Conversation) -> tuple[Prompt, str]:
        return await render_chat(call, chat, ask.tools, form, bounds, images)

    async def attempt(chat: Conversation, answer: int) -> tuple[Prompt, str] | None:
        try:
            made = await made_of(chat)
        except ContextLengthExceededError:
            return None
        return made if len(made[0].ids) + answer <= limit else None

    if not chat.drops_oldest:
        return await made_of(chat)
    asked = ask.ending.max_tokens
    cuts = shorter(chat.messages)
    # Where something is dropped anyway, an answer of any length gets more than one token.
    rooms = [(1, room_of(None, limit))]
    if chat.makes_room and asked and room_of(asked, limit) == asked:
        rooms = [(asked, asked), *rooms]
    for least, room in rooms:
        if whole := await attempt(chat, least):
            return whole
        found, low, high = None, 0, len(cuts)
        while low < high:
            middle = (low + high) // 2
            if made := await attempt(replace(chat, messages=cuts[middle]), room):
                found, high = made, middle
            else:
                low = middle + 1
        if found is not None:
            n_dropped = len(chat.messages) - len(cuts[high])
            call.caller.tell(f"{chat.param}: without the {n_dropped} oldest messages it fits")
            return found
    return await made_of(chat)  # is refused


def _check_thinking(call: Call[Ask], chat: Conversation, form: AnswerFormat) -> None:
    """Raise if reasoning is needed and there is none; tell who asks for an effort in vain."""
    effort, param = chat.effort, chat.effort_param
    if chat.must_think and not form.thinks:
        name = call.ask.model or call.state.model_name
        raise BadRequestError(f'"{name}" does not support thinking', param=param)
    if effort is None or (effort == "none" and not form.thinks):
        return
    if not uses_effort(effort, template_of(call.state)):
        call.caller.tell(f"{param}: this model has no such setting; it changes nothing")


def _prompts_of(ask: Ask, state: ServerState) -> Prompts | None:
    """What is continued as it is, if it is not a conversation for the model's template."""
    if isinstance(ask.input, Prompts):
        return ask.input
    if state.chat_template is None and ask.input.plain is not None and not ask.input.must_think:
        return Prompts(items=[ask.input.plain], param=ask.input.param)
    return None


def _bounds(call: Call[Ask]) -> Bounds:
    """Of a prompt's tokens as many as the context has, and one more, which is too much."""
    limit, last = call.state.max_model_len, call.ask.last_prompt_tokens
    if last is None:
        return Bounds(most=limit, room=call.hold)
    return Bounds(last=limit if last < 0 else last, room=call.hold)


async def _images_of_prompts(call: Call[Ask], prompts: Prompts) -> Images:
    """The images of texts that have some, read."""
    parts = [
        (part.place, part)
        for item in prompts.items
        if isinstance(item, Illustrated)
        for part in item.images
    ]
    if not parts:
        return NO_IMAGES
    if call.state.eyes is None:
        place = parts[0][0]
        raise BadRequestError(f"{place}: {TEXT_ONLY}; accepted: none", param=place)
    reading = call.state.eyes.read_parts(
        parts, prompts.param, call.caller, call.state.workers, wants_pixels=True
    )
    return await while_connected(call.receive, reading)


def _read_illustrated(
    item: Illustrated, state: ServerState, bounds: Bounds, images: Images, *, add_bos: bool
) -> Prompt:
    """A text with placeholders where its images are; its own words may not be these."""
    eyes, seen = state.eyes, [images[id(part)] for part in item.images]
    assert eyes is not None
    text = _interleaved(item.text.split(item.mark), [one.alone for one in seen])
    ids = state.tokenizer.encode(text, add_bos=add_bos, parse_special=True, bounds=bounds)
    if len(ids) > state.max_model_len:
        return Prompt(ids, item.text)
    try:
        ids, pictures = eyes.spans(ids, seen)
    except ValueError:
        raise BadRequestError(
            f"prompt: {eyes.written_as} stands for an image; accepted: {item.mark}", param="prompt"
        ) from None
    return Prompt(ids, item.text, pictures)


def read_prompts(
    call: Call[Ask], prompts: Prompts, bounds: Bounds, images: Images = NO_IMAGES
) -> list[Prompt]:
    """Texts, token ids and gaps, checked; with ``images`` of texts that have some."""
    ask, state = call.ask, call.state
    param, tokenizer = prompts.param, state.tokenizer
    add_bos = prompts.add_special_tokens
    check_count(len(prompts.items), ask.n_drawn, state.generator, param)
    for item in prompts.items:
        if isinstance(item, Illustrated):
            check_size(len(item.text), state.max_model_len, param)
        elif isinstance(item, str):
            check_size(len(item), state.max_model_len, param)
        elif isinstance(item, list):
            check_ids(item, tokenizer.vocab_size, param)

    def read(item: str | list[int] | Infill | Illustrated) -> Prompt:
        if isinstance(item, Illustrated):
            return _read_illustrated(item, state, bounds, images, add_bos=add_bos)
        if isinstance(item, Infill):
            return read_infill(item, ask.ending.max_tokens, state, bounds, add_bos=add_bos)
        if not isinstance(item, str):
            return Prompt(item)
        ids = tokenizer.encode(item, add_bos=add_bos, parse_special=True, bounds=bounds)
        return Prompt(ids, item)

    return [read(item) for item in prompts.items]


def template_of(state: ServerState) -> ChatTemplate:
    """The chat template, which a conversation needs."""
    if state.chat_template is None:
        raise BadRequestError(
            "messages: this model has no chat template; use /v1/completions", param="messages"
        )
    return state.chat_template


def form_of(chat: Conversation, tools: ToolUse, state: ServerState) -> AnswerFormat:
    """How the model answers a conversation."""
    try:
        form = answer_format(template_of(state), tools=bool(tools.listed))
    except ChatTemplateError as error:
        raise BadRequestError(f"{chat.param}: {error}", param=chat.param) from None
    if chat.effort is not None and form.efforts is not None and chat.effort not in form.efforts:
        raise BadRequestError(
            f"{chat.effort_param}: {chat.effort!r} is not one of this model's; accepted:"
            f" {', '.join(form.efforts)}",
            param=chat.effort_param,
        )
    return form


async def render_chat(
    call: Call[Any],
    chat: Conversation,
    tools: ToolUse,
    form: AnswerFormat,
    bounds: Bounds | None = None,
    images: Images | None = None,
) -> tuple[Prompt, str]:
    """A conversation as the model gets it, and the end of its text; else as ``render_text``.

    ``images`` are all that its messages have; None: they are read to be counted.
    """
    state = call.state
    bounds = bounds or Bounds(room=call.hold)
    if images is None:
        images = await images_of(call, chat, wants_pixels=False)
    text, mark = await render_text(call, chat, tools, form)
    seen = [images[id(part)] for message in chat.messages for _, part in message.images]
    if seen and state.eyes is not None:
        text = _with_views(text, seen, state.eyes.written_as, chat.param)
    encode = partial(state.tokenizer.encode_marked, text, mark, bounds)
    with call.hold.passing(text.__sizeof__()):
        ids = await state.workers.read(len(text), encode)
    if not seen or state.eyes is None or len(ids) > state.max_model_len:
        return Prompt(ids), text[-END_SIZE:]
    ids, pictures = state.eyes.spans(ids, seen)
    return Prompt(ids, pictures=pictures), text[-END_SIZE:]


def _with_views(text: str, images: Sequence[ReadImage], written_as: str, param: str) -> str:
    """The text of a conversation with a placeholder for each view where its images are."""
    between = text.split(written_as)
    if len(between) != len(images) + 1:
        raise BadRequestError(
            f"{param}: the model's chat template writes {len(between) - 1} images of {len(images)}",
            param=param,
        )
    return _interleaved(between, [image.text for image in images])


def _interleaved(texts: Sequence[str], between: Sequence[str]) -> str:
    """Texts with others between them."""
    first, *others = texts
    return first + "".join(one + after for one, after in zip(between, others, strict=True))


async def images_of(call: Call[Any], chat: Conversation, *, wants_pixels: bool) -> Images:
    """The images of a conversation, read; BadRequestError if the model sees none."""
    state = call.state
    if not any(message.images for message in chat.messages):
        return NO_IMAGES
    if state.eyes is None:
        refuse_images(chat.messages, chat.param)
        return NO_IMAGES
    reading = state.eyes.read(
        chat.messages, chat.param, call.caller, state.workers, wants_pixels=wants_pixels
    )
    return await while_connected(call.receive, reading)


async def render_text(
    call: Call[Any], chat: Conversation, tools: ToolUse, form: AnswerFormat
) -> tuple[str, str]:
    """What the template makes of a conversation, and the tokenizer's mark in it."""
    state = call.state
    template, param = template_of(state), chat.param
    variables = effort_variables(chat.effort, template, chat.variables)
    reserved = RESERVED & variables.keys()
    if reserved:
        raise BadRequestError(
            f"chat_template_kwargs: {min(reserved)} cannot be set here",
            param="chat_template_kwargs",
        )
    continues = chat.continue_final_message
    images = _image_marks(chat, state)

    def pack() -> tuple[bytes, str]:
        conversation: Sequence[Mapping[str, Any]]
        # Also those that must not be called now: the prompt stays what it was.
        listed = [_for_template(tool) for tool in tools.listed] or None
        image_mark = "" if images is None else images.mark
        shown_as = [message.for_template(image_mark) for message in chat.messages]
        conversation = without_session(shown_as)
        conversation, listed = form.conversation(conversation, listed)
        shown = sum(map(text_size, (conversation, listed, variables)))
        check_size(shown, state.max_model_len, param)
        return pack_conversation(
            *(state.tokenizer, template, conversation, listed, variables),
            add_generation_prompt=chat.add_generation_prompt and not continues,
            without_end=continues,
            most_characters=MAX_CHARACTERS * state.max_model_len,
            images=images,
        )

    try:
        packed, mark = await state.workers.read(call.size, pack)
        work = state.templates.render(template, packed, call.caller.client)
        text = await while_connected(call.receive, work)
    except ChatTemplateError as error:
        raise BadRequestError(f"{param}: {error}", param=param) from None
    except SandboxError as error:
        headers = {"retry-after": str(RETRY_AFTER_S)}
        raise UnavailableError(f"{param}: {error}", param=param, headers=headers) from None
    return text, mark


def _image_marks(chat: Conversation, state: ServerState) -> ImageMarks | None:
    """What stands for images in the texts of a conversation, if there are any."""
    if state.eyes is None or not any(message.images for message in chat.messages):
        return None
    mark = choose_mark([message.text for message in chat.messages])
    return ImageMarks(mark, state.eyes.written_as)


def _for_template(tool: Tool) -> dict[str, Any]:
    """A tool as templates expect it."""
    function = tool.function
    parameters = function.parameters or {"type": "object", "properties": {}}
    shown = {
        "name": function.name,
        "description": function.description,
        "parameters": without_grammars(parameters),
    }
    return {"type": "function", "function": shown}
