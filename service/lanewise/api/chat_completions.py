"""``POST /v1/chat/completions``: conversations, written into a prompt by the model's template."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.body import find_adapter, read_request
from lanewise.api.budgets import MAX_CHARACTERS
from lanewise.api.chat_reply import ChatReply, ParsedReply
from lanewise.api.errors import BadRequestError, UnavailableError
from lanewise.api.generation import (
    check_count,
    check_length,
    check_priority,
    check_size,
    make_requests,
    sampling_params,
)
from lanewise.api.leaving import while_connected
from lanewise.api.request_budgets import text_size
from lanewise.api.schemas import ChatCompletionRequest, Message
from lanewise.api.sse import respond
from lanewise.api.state import ServerState
from lanewise.api.structured import (
    RETRY_AFTER_S,
    call_grammar_of,
    check_tools,
    for_template,
    grammar_of,
    tools_of,
)
from lanewise.api.templates import pack_conversation
from lanewise.engine.request import SamplingParams
from lanewise.sandbox.lane import SandboxError
from lanewise.text.answers.families import AnswerFormat, answer_format, effort_variables
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.grammar import GrammarSource

# What a template gets from elsewhere, or what Python would mistake for it.
RESERVED = {"messages", "tools", "add_generation_prompt", "chat_template", "self"}
END_SIZE = 256  # characters at the end of a prompt that show how its answer begins


async def create_chat_completion(request: Request, state: ServerState) -> Response:
    """Answer a conversation."""
    body, size = await read_request(request, state, ChatCompletionRequest)
    check_priority(body.priority, request.scope, state)
    check_tools(body)
    template = template_of(state)
    form = _form_of(body, template)
    prompt = await encode_chat(
        body.messages,
        size,
        state,
        request,
        [for_template(tool) for tool in body.tools] if body.callable_tools else None,
        form=form,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=effort_variables(body.reasoning_effort, template, body.chat_template_kwargs),
    )
    continued = body.messages[-1].text if body.continue_final_message else None
    start = form.start_of(prompt.end, continued)

    def within(content: GrammarSource) -> GrammarSource:
        return form.body_grammar(content, state.tokenizer, start)

    tools = tools_of(body)
    grammar = await call_grammar_of(body, form, start, state, request) if tools else None
    params = await state.off_loop(size, lambda: drawing(body, len(prompt.ids), state))
    if not tools:
        grammar = await grammar_of(body, state, request, within)
    client, adapter = request.scope["client_number"], find_adapter(body.model, state)
    requests = make_requests(
        [prompt.ids], params, body, client, state.tenant_of(client), adapter, grammar
    )

    def make_reply() -> ChatReply:
        continues = grammar is not None and not tools  # a form has every space in it
        if form.needs_parser(tools):
            return ParsedReply(body, prompt.ids, state, form, start, tools, continues=continues)
        return ChatReply(body, prompt.ids, state, continues=continues)

    return await respond(request, state, requests, await state.off_loop(size, make_reply))


def template_of(state: ServerState) -> ChatTemplate:
    """The chat template, which a conversation needs."""
    if state.chat_template is None:
        raise BadRequestError(
            "messages: this model has no chat template; use /v1/completions", param="messages"
        )
    return state.chat_template


def _form_of(body: ChatCompletionRequest, template: ChatTemplate) -> AnswerFormat:
    try:
        form = answer_format(template, tools=bool(body.callable_tools))
    except ChatTemplateError as error:
        raise BadRequestError(f"messages: {error}", param="messages") from None
    effort = body.reasoning_effort
    if effort is not None and form.efforts is not None and effort not in form.efforts:
        raise BadRequestError(
            f"reasoning_effort: {effort!r} is not one of this model's; accepted:"
            f" {', '.join(form.efforts)}",
            param="reasoning_effort",
        )
    return form


def drawing(body: ChatCompletionRequest, n_prompt: int, state: ServerState) -> SamplingParams:
    """How the answers to a conversation of so many tokens are drawn."""
    asked = (
        body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    )
    max_tokens = max(state.max_model_len - n_prompt, 1) if asked is None else asked
    check_length(n_prompt, max_tokens, state.max_model_len, "messages")
    check_count(1, body.n, state.engine, "n")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, state, max_tokens, logprobs)


class Prompt(NamedTuple):
    """A conversation as the model gets it."""

    ids: list[int]
    end: str  # of its text


async def encode_chat(
    messages: list[Message],
    size: int,
    state: ServerState,
    request: Request,
    tools: list[dict[str, Any]] | None = None,
    *,
    form: AnswerFormat | None = None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: dict[str, Any],
) -> Prompt:
    """A conversation, which came in ``size`` bytes with all that belongs to it.

    ``form`` is needed for tools and for calls.
    """
    template = template_of(state)
    reserved = RESERVED & variables.keys()
    if reserved:
        raise BadRequestError(
            f"chat_template_kwargs: {min(reserved)} cannot be set here",
            param="chat_template_kwargs",
        )

    def pack() -> tuple[bytes, str]:
        conversation: Sequence[Mapping[str, Any]]
        conversation, listed = [message.for_template() for message in messages], tools
        if form is not None:
            conversation, listed = form.conversation(conversation, tools)
        shown = sum(map(text_size, (conversation, listed, variables)))
        check_size(shown, state.max_model_len, "messages")
        return pack_conversation(
            *(state.tokenizer, template, conversation, listed, variables),
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            without_end=continue_final_message,
            most_characters=MAX_CHARACTERS * state.max_model_len,
        )

    client = request.scope["client_number"]
    try:
        packed, mark = await state.off_loop(size, pack)
        text = await while_connected(request, state.templates.render(template, packed, client))
    except ChatTemplateError as error:
        raise BadRequestError(f"messages: {error}", param="messages") from None
    except SandboxError as error:
        headers = {"retry-after": str(RETRY_AFTER_S)}
        raise UnavailableError(f"messages: {error}", param="messages", headers=headers) from None
    ids = await state.off_loop(len(text), lambda: state.tokenizer.encode_marked(text, mark))
    return Prompt(ids, text[-END_SIZE:])
