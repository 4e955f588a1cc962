"""``POST /v1/chat/completions``: conversations, written into a prompt by the model's template."""

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.body import find_adapter, read_request
from lanewise.api.errors import BadRequestError
from lanewise.api.generation import (
    Answer,
    Piece,
    check_count,
    check_length,
    check_size,
    make_requests,
    sampling_params,
)
from lanewise.api.logprobs import ChatLogprobs, TokenNames
from lanewise.api.reply import Reply, dumps
from lanewise.api.schemas import ChatCompletionRequest, Message
from lanewise.api.sse import respond
from lanewise.api.state import ServerState
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError

# What a template gets from elsewhere, or what Python would mistake for it.
RESERVED = {"messages", "tools", "add_generation_prompt", "chat_template", "self"}


async def create_chat_completion(request: Request, state: ServerState) -> Response:
    """Answer a conversation."""
    body = await read_request(request, state, ChatCompletionRequest)
    prompt = await encode_chat(
        body.messages,
        state,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
    )
    asked = (
        body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    )
    room = state.max_model_len - len(prompt)
    max_tokens = max(room, 1) if asked is None else asked
    check_length(len(prompt), max_tokens, state.max_model_len, "messages")
    params = sampling_params(
        body, state, max_tokens, (body.top_logprobs or 0) if body.logprobs else None
    )
    check_count(1, body.n, state.engine, "n")
    client, adapter = request.scope["client_number"], find_adapter(body.model, state)
    requests = make_requests([prompt], params, body, client, adapter)
    return await respond(request, state, requests, ChatReply(body, prompt, state))


async def encode_chat(
    messages: list[Message],
    state: ServerState,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: dict[str, Any],
) -> list[int]:
    """The tokens of a conversation."""
    template = state.chat_template
    if template is None:
        raise BadRequestError(
            "messages: this model has no chat template; use /v1/completions", param="messages"
        )
    if continue_final_message:
        template = ContinuedTemplate(template)
    conversation = [message.for_template() for message in messages]
    reserved = RESERVED & variables.keys()
    if reserved:
        raise BadRequestError(
            f"chat_template_kwargs: {min(reserved)} cannot be set here",
            param="chat_template_kwargs",
        )
    size = sum(len(message["content"]) for message in conversation)
    check_size(size, state.max_model_len, "messages")
    try:
        return await state.off_loop(
            size,
            lambda: state.tokenizer.encode_chat(
                conversation,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                chat_template=template,
                **variables,
            ),
        )
    except ChatTemplateError as error:
        raise BadRequestError(f"messages: {error}", param="messages") from None


class ContinuedTemplate(ChatTemplate):
    """A template whose text ends with the words of the last message, for the model to go on."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def render(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        """The conversation without what the template writes after the last message."""
        text = self._template.render(messages, *args, **kwargs)
        last = messages[-1]["content"]
        # Some templates strip messages and some do not.
        start = text.rfind(last.strip())
        if start < 0:
            raise ChatTemplateError("the template does not show the last message as it is")
        kept = last.lstrip()
        end = start + len(kept if text.startswith(kept, start) else last.strip())
        return text[:end]


class ChatReply(Reply[ChatLogprobs]):
    """One message for each choice."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(self, body: ChatCompletionRequest, prompt: list[int], state: ServerState) -> None:
        super().__init__(body, [prompt], state, continues=body.continue_final_message)
        self._names = TokenNames(state.tokenizer)
        self._with_logprobs = body.logprobs

    def first_events(self) -> Iterator[str]:
        """Whose message it is."""
        for answer in self.answers:
            role = '"delta":{"role":"assistant","content":""},"logprobs":null'
            yield self.event(answer.index, role, None)

    def express(self, answer: Answer, piece: Piece) -> tuple[str, ChatLogprobs | None]:
        """Text and, if asked for, log-probabilities."""
        if not self._with_logprobs:
            return piece.text, None
        logprobs = ChatLogprobs()
        if piece.output.sampled is not None:
            logprobs.add(self._names, piece.output.sampled)
        return piece.text, logprobs

    def whole_choice(self, text: str) -> dict[str, Any]:
        """The message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def event_choice(self, text: str) -> str:
        """The message's next part."""
        return f'"delta":{{"content":{dumps(text)}}}'
