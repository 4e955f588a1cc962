"""``POST /v1/chat/completions``: conversations, written into a prompt by the model's template."""

from collections.abc import Collection, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.body import find_adapter, read_request
from lanewise.api.budgets import MOST_CHARACTERS
from lanewise.api.errors import BadRequestError, UnavailableError
from lanewise.api.generation import (
    Answer,
    Piece,
    check_count,
    check_length,
    check_priority,
    check_size,
    make_requests,
    sampling_params,
)
from lanewise.api.leaving import while_connected
from lanewise.api.logprobs import ChatLogprobs, TokenNames
from lanewise.api.reply import Reply, dumps, dumps_text
from lanewise.api.request_budgets import text_size
from lanewise.api.schemas import ChatCompletionRequest, Message
from lanewise.api.sse import respond
from lanewise.api.state import ServerState
from lanewise.api.structured import RETRY_AFTER_S, ToolUse, grammar_of, tool_use_of
from lanewise.api.templates import pack_conversation
from lanewise.engine.request import SamplingParams
from lanewise.sandbox.lane import SandboxError
from lanewise.text.chat_template import ChatTemplateError
from lanewise.text.tool_calls import ToolCallParser, ToolFormat, explained, marks

# What a template gets from elsewhere, or what Python would mistake for it.
RESERVED = {"messages", "tools", "add_generation_prompt", "chat_template", "self"}


async def create_chat_completion(request: Request, state: ServerState) -> Response:
    """Answer a conversation."""
    body, size = await read_request(request, state, ChatCompletionRequest)
    check_priority(body.priority, request.scope, state)
    tool_use = await tool_use_of(body, state, request)
    prompt = await encode_chat(
        body.messages,
        size,
        state,
        request,
        tool_use,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
    )
    params = await state.off_loop(size, lambda: drawing(body, len(prompt), state))
    grammar = await grammar_of(body, state, request) if tool_use is None else tool_use.grammar
    client, adapter = request.scope["client_number"], find_adapter(body.model, state)
    requests = make_requests(
        [prompt], params, body, client, state.tenant_of(client), adapter, grammar
    )

    def make_reply() -> ChatReply:
        if tool_use is None:
            return ChatReply(body, prompt, state, continues=grammar is not None)
        return ToolReply(body, prompt, state, tool_use.form)

    return await respond(request, state, requests, await state.off_loop(size, make_reply))


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


async def encode_chat(
    messages: list[Message],
    size: int,
    state: ServerState,
    request: Request,
    tool_use: ToolUse | None = None,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: dict[str, Any],
) -> list[int]:
    """The tokens of a conversation, which came in ``size`` bytes with all that belongs to it."""
    template = state.chat_template
    if template is None:
        raise BadRequestError(
            "messages: this model has no chat template; use /v1/completions", param="messages"
        )
    reserved = RESERVED & variables.keys()
    if reserved:
        raise BadRequestError(
            f"chat_template_kwargs: {min(reserved)} cannot be set here",
            param="chat_template_kwargs",
        )

    def pack() -> tuple[bytes, str]:
        conversation = [message.for_template() for message in messages]
        tools = None
        if tool_use is not None:
            if tool_use.form.takes_tools:
                tools = tool_use.shown
            else:
                conversation = explained(conversation, tool_use.shown)
        shown = sum(map(text_size, (conversation, tools, variables)))
        check_size(shown, state.max_model_len, "messages")
        return pack_conversation(
            *(state.tokenizer, template, conversation, tools, variables),
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            without_end=continue_final_message,
            most_characters=MOST_CHARACTERS * state.max_model_len,
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
    return await state.off_loop(len(text), lambda: state.tokenizer.encode_marked(text, mark))


class ChatReply(Reply[ChatLogprobs]):
    """One message for each choice."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(
        self,
        body: ChatCompletionRequest,
        prompt: list[int],
        state: ServerState,
        *,
        continues: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        continues = continues or body.continue_final_message
        super().__init__(body, [prompt], state, continues=continues, shown=shown)
        self._names = TokenNames(state.tokenizer)
        self._with_logprobs = body.logprobs
        self._token_size *= 1 + (body.top_logprobs or 0)

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

    def whole_choice(self, answer: Answer, text: str) -> dict[str, Any]:
        """The message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def event_choice(self, answer: Answer, text: str) -> str:
        """The message's next part."""
        return f'"delta":{{"content":{dumps_text(text)}}}'


class ToolReply(ChatReply):
    """Messages that may call tools."""

    def __init__(
        self, body: ChatCompletionRequest, prompt: list[int], state: ServerState, form: ToolFormat
    ) -> None:
        shown = marks(form, state.tokenizer)
        super().__init__(body, prompt, state, shown=shown)
        self._parsers = [ToolCallParser(form) for _ in self.answers]

    def express(self, answer: Answer, piece: Piece) -> tuple[str, ChatLogprobs | None]:
        """Only content is text; calls are kept by the answer's parser."""
        text, logprobs = super().express(answer, piece)
        last = piece.finish_reason is not None
        return self._parsers[answer.index].push(text, last=last), logprobs

    def whole_choice(self, answer: Answer, text: str) -> dict[str, Any]:
        """The message with its calls."""
        calls = self._parsers[answer.index].calls
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return {"message": message}

    def event_choice(self, answer: Answer, text: str) -> str:
        """The message's next part: content, parts of calls, or neither."""
        delta: dict[str, Any] = {"content": text} if text else {}
        if calls := self._parsers[answer.index].take_deltas():
            delta["tool_calls"] = calls
        return f'"delta":{dumps(delta)}'

    def shown_reason(self, answer: Answer) -> str | None:
        """An answer that came to its own end with calls ends for them."""
        called = answer.finish_reason == "stop" and self._parsers[answer.index].calls
        return "tool_calls" if called else answer.finish_reason
