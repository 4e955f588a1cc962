"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: what evaluation tools ask a server."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.body import read_request
from lanewise.api.chat_completions import encode_chat
from lanewise.api.generation import check_ids
from lanewise.api.reply import dumps_long
from lanewise.api.schemas import DetokenizeRequest, TokenizeRequest
from lanewise.api.state import ServerState


async def tokenize(request: Request, state: ServerState) -> Response:
    """The tokens of a prompt or of a conversation."""
    body, size = await read_request(request, state, TokenizeRequest)
    if body.messages is not None:
        prompt = await encode_chat(
            body.messages,
            size,
            state,
            request,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=False,
            variables=body.chat_template_kwargs,
        )
        tokens = prompt.ids
    else:
        text = body.prompt or ""
        tokens = await state.off_loop(
            size,
            lambda: state.tokenizer.encode(
                text, add_bos=body.add_special_tokens, parse_special=True
            ),
        )

    def answer() -> dict[str, Any]:
        made = {"count": len(tokens), "max_model_len": state.max_model_len, "tokens": tokens}
        if body.return_token_strs:
            made["token_strs"] = list(map(state.tokenizer.token_text, tokens))
        return made

    return await _json(answer, len(tokens), state)


async def detokenize(request: Request, state: ServerState) -> Response:
    """The text of some tokens, control tokens included."""
    body, size = await read_request(request, state, DetokenizeRequest)

    def text() -> str:
        check_ids(body.tokens, state.tokenizer.vocab_size, "tokens")
        return state.tokenizer.decode(body.tokens, skip_special=False)

    prompt = await state.off_loop(size, text)
    return await _json(lambda: {"prompt": prompt}, len(prompt), state)


async def _json(make: Callable[[], dict[str, Any]], size: int, state: ServerState) -> Response:
    """In a thread when there are many: nobody waits for a million tokens to become text."""
    body = await state.answering(size, lambda: dumps_long(make()).encode())
    return Response(body, media_type="application/json")


def tokenizer_info(state: ServerState) -> dict[str, Any]:
    """The special tokens and the chat template."""
    names = state.tokenizer.special_tokens
    template = state.chat_template
    return {
        "bos_token": names.get("bos_token"),
        "eos_token": names.get("eos_token"),
        "pad_token": names.get("pad_token"),
        "add_bos_token": state.tokenizer.adds_bos,
        "chat_template": None if template is None else template.source(),
        "max_model_len": state.max_model_len,
    }
