"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: what evaluation tools ask a server."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.conversations import AnyTools, Messages, functions_of, left_out
from lanewise.api.generation.ask import Conversation, ToolUse
from lanewise.api.generation.body import read_request
from lanewise.api.generation.call import Call
from lanewise.api.generation.leaving import while_connected
from lanewise.api.generation.measuring import check_ids
from lanewise.api.generation.rendering import form_of, render_chat
from lanewise.api.generation.writing import dumps, dumps_long
from lanewise.api.schemas import Strict, TokenIds, refuse
from lanewise.api.shared.state import ServerState
from lanewise.text.pieces import TOKEN_BYTES, Bounds, Tokens

TOKENS_AT_ONCE = 1024  # that are written: the interpreter is free between
# A text as bytes and as characters, and twice in an answer, which is made of characters first.
TEXT_COPIES = 8
SHOWN_ID, SHOWN_TOKEN = 8, 48  # bytes of one in an answer, alone and with its text


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
    tools: AnyTools = Field(
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

    @property
    def shows_pieces(self) -> bool:
        """Whether each token is an object."""
        return self.content is not None and self.with_pieces

    @property
    def shows_texts(self) -> bool:
        """Whether the text of each token is in the answer."""
        return self.shows_pieces or self.return_token_strs


class DetokenizeRequest(Strict):
    """Body of ``POST /detokenize``."""

    model: str | None = None
    tokens: TokenIds


async def tokenize(request: Request, state: ServerState) -> Response:
    """The tokens of a prompt or of a conversation."""

    def check(body: TokenizeRequest) -> None:
        state.request_budgets.check_messages(body.messages or ())
        state.request_budgets.check_tools(functions_of(body.tools))

    call = await read_request(request, state, TokenizeRequest, check)
    body = call.ask
    for notice in left_out(body.tools):
        call.caller.tell(notice)
    ids: Sequence[int]
    if body.messages is not None:
        chat = Conversation(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            variables=body.chat_template_kwargs,
        )
        tools = ToolUse(listed=functions_of(body.tools))
        form = form_of(chat, tools, state)
        prompt, _ = await render_chat(call, chat, tools, form)
        ids = prompt.ids
    else:
        ids = await while_connected(call.receive, _encode(call))

    def written() -> bytes:
        return b"".join(_written(ids, body, state))

    answer = await state.workers.write(len(ids), written)
    return Response(answer, media_type="application/json")


async def detokenize(request: Request, state: ServerState) -> Response:
    """The text of some tokens, control tokens included."""
    call = await read_request(request, state, DetokenizeRequest)
    tokens = call.ask.tokens

    def text() -> str:
        check_ids(tokens, state.tokenizer.vocab_size, "tokens")
        n_bytes = sum(len(state.tokenizer.token_bytes(token)) for token in tokens)
        call.hold.keep(TEXT_COPIES * n_bytes)
        return state.tokenizer.decode(tokens, skip_special=False)

    prompt = await state.workers.read(call.size, text)
    # The first is vLLM's word, the second llama.cpp's.
    shown = {"prompt": prompt, "content": prompt}
    return await state.workers.answer(len(prompt), lambda: dumps_long(shown))


async def _encode(call: Call[TokenizeRequest]) -> "array[int]":
    """The tokens of a text, piece by piece: each waits for the texts of others."""
    body, state, hold = call.ask, call.state, call.hold
    text, add_bos, parse = body.prompt or "", body.add_special_tokens, True
    if body.content is not None:
        text, add_bos, parse = body.content, body.add_special, body.parse_special
    tokenizer = state.tokenizer
    before: list[int] = tokenizer.beginning(add_bos=add_bos)
    behind: list[int] = []
    if state.pooling is not None:  # as the model reads a text
        whole = state.pooling.whole
        before, behind = whole.ends if add_bos else ([], [])
        text = whole.prepared(text)
    ids = array("I", before)
    pieces = tokenizer.pieces(text, parse_special=parse)
    each = ids.itemsize + 2 * (SHOWN_TOKEN if body.shows_texts else SHOWN_ID)
    n_read = n_counted = 0

    def add() -> bool:
        nonlocal n_read, n_counted
        piece = next(pieces, None)
        if piece is None:
            return False
        tokens = Tokens(Bounds(room=hold))
        tokenizer.add_piece(piece, tokens, parse_special=parse)
        n_tokens = len(ids) + len(tokens.ids)
        n_read += len(piece.text)
        # The first piece tells about how many there will be: who cannot have room is told at once.
        expected = n_tokens * len(text) // max(1, n_read)
        more = max(0, max(n_tokens, expected if not n_counted else 0) - n_counted)
        hold.keep(each * more - TOKEN_BYTES * len(tokens.ids))
        n_counted += more
        ids.extend(tokens.ids)
        return True

    while await state.workers.read(len(text), add):
        pass
    ids.extend(behind)
    return ids


def _written(ids: Sequence[int], body: TokenizeRequest, state: ServerState) -> Iterator[bytes]:
    """The answer's JSON in pieces."""

    def lists(show: Callable[[int], Any]) -> Iterator[bytes]:
        for at in range(0, len(ids), TOKENS_AT_ONCE):
            some = dumps([show(token) for token in ids[at : at + TOKENS_AT_ONCE]])
            yield f"{',' if at else ''}{some[1:-1]}".encode()

    def with_piece(token: int) -> dict[str, Any]:
        return {"id": token, "piece": _piece(token, state)}

    yield f'{{"count":{len(ids)},"max_model_len":{state.max_model_len},"tokens":['.encode()
    yield from lists(with_piece if body.shows_pieces else int)
    if body.return_token_strs:
        yield b'],"token_strs":['
        yield from lists(state.tokenizer.token_text)
    yield b"]}"


def _piece(token: int, state: ServerState) -> str | list[int]:
    """A token's text, or its bytes if they are none by themselves."""
    raw = state.tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def tokenizer_info(_: Request, state: ServerState) -> Response:
    """Special tokens and chat template."""
    names = state.tokenizer.special_tokens
    template = state.chat_template
    info = {
        "bos_token": names.get("bos_token"),
        "eos_token": names.get("eos_token"),
        "pad_token": names.get("pad_token"),
        "add_bos_token": state.tokenizer.adds_bos,
        "chat_template": None if template is None else template.shown,
        "max_model_len": state.max_model_len,
    }
    return JSONResponse(info)
