"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: what evaluation tools ask a server."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.generation.ask import Conversation, ToolUse
from lanewise.api.generation.body import read_request
from lanewise.api.generation.measuring import check_ids
from lanewise.api.generation.rendering import form_of, render_chat
from lanewise.api.generation.writing import dumps_long
from lanewise.api.schemas import (
    FirstProblemOnly,
    Messages,
    Strict,
    TokenIds,
    Tool,
    refuse,
)
from lanewise.api.shared.state import ServerState


class TokenizeRequest(Strict):
    """Body of ``POST /tokenize``: a prompt or messages, or content in llama.cpp's words."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Messages, Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    content: str | None = None
    add_special: bool = Field(False, description="With content: the tokens that begin a text.")
    parse_special: bool = Field(True, description="With content: control tokens may be in it.")
    with_pieces: bool = Field(False, description="With content: each token's text too.")
    tools: Annotated[list[Tool], FirstProblemOnly()] = Field(
        default_factory=list, description="With messages: those of the conversation."
    )
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if [self.prompt, self.messages, self.content].count(None) != 2:
            raise refuse("prompt", "one of prompt, messages and content is needed")
        if self.tools and self.messages is None:
            raise refuse("tools", "only allowed with messages")
        return self


class DetokenizeRequest(Strict):
    """Body of ``POST /detokenize``."""

    model: str | None = None
    tokens: TokenIds


async def tokenize(request: Request, state: ServerState) -> Response:
    """The tokens of a prompt or of a conversation."""

    def check(body: TokenizeRequest) -> None:
        state.request_budgets.check_messages(body.messages or ())
        state.request_budgets.check_tools(body.tools)

    body, size = await read_request(request, state, TokenizeRequest, check)
    if body.messages is not None:
        chat = Conversation(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            variables=body.chat_template_kwargs,
        )
        tools = ToolUse(listed=body.tools)
        form = form_of(chat, tools, state)
        prompt, _ = await render_chat(chat, size, state, request, tools, form)
        tokens = prompt.ids
    else:
        tokens = await state.workers.read(size, lambda: _encode(body, state))

    def answer() -> dict[str, Any]:
        shown: list[Any] = tokens
        if body.content is not None and body.with_pieces:
            shown = [{"id": token, "piece": _piece(token, state)} for token in tokens]
        made = {"count": len(tokens), "max_model_len": state.max_model_len, "tokens": shown}
        if body.return_token_strs:
            made["token_strs"] = list(map(state.tokenizer.token_text, tokens))
        return made

    return await state.workers.answer(len(tokens), lambda: dumps_long(answer()))


async def detokenize(request: Request, state: ServerState) -> Response:
    """The text of some tokens, control tokens included."""
    body, size = await read_request(request, state, DetokenizeRequest)

    def text() -> str:
        check_ids(body.tokens, state.tokenizer.vocab_size, "tokens")
        return state.tokenizer.decode(body.tokens, skip_special=False)

    prompt = await state.workers.read(size, text)
    # The first is vLLM's word, the second llama.cpp's.
    shown = {"prompt": prompt, "content": prompt}
    return await state.workers.answer(len(prompt), lambda: dumps_long(shown))


def _encode(body: TokenizeRequest, state: ServerState) -> list[int]:
    text, add_bos, parse = body.prompt, body.add_special_tokens, True
    if body.content is not None:
        text, add_bos, parse = body.content, body.add_special, body.parse_special
    return state.tokenizer.encode(text or "", add_bos=add_bos, parse_special=parse)


def _piece(token: int, state: ServerState) -> str | list[int]:
    """A token's text, or its bytes if they are none by themselves."""
    raw = state.tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def tokenizer_info(state: ServerState) -> dict[str, Any]:
    """The special tokens and the chat template."""
    names = state.tokenizer.special_tokens
    template = state.chat_template
    return {
        "bos_token": names.get("bos_token"),
        "eos_token": names.get("eos_token"),
        "pad_token": names.get("pad_token"),
        "add_bos_token": state.tokenizer.adds_bos,
        "chat_template": None if template is None else template.shown,
        "max_model_len": state.max_model_len,
    }
