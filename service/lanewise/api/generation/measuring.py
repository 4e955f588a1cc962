"""Whether a request fits the model and the server, before any work is spent on it."""

from collections.abc import Sequence
from typing import Any

from lanewise.api.errors import BadRequestError, ContextLengthExceededError
from lanewise.api.generation.ask import Ask
from lanewise.api.generation.call import Call
from lanewise.api.shared.budgets import MAX_CHARACTERS
from lanewise.engine.engine import Engine

ROOM = 8  # of the context so much is left for an answer that may be of any length: one of so many


def check_ids(ids: Sequence[int], n_tokens: int, param: str) -> None:
    """Raise unless all ids are tokens of the model."""
    if (largest := max(ids, default=0)) >= n_tokens:
        raise BadRequestError(
            f"{param}: {largest} is not a token; accepted: 0 to {n_tokens - 1}", param=param
        )


def check_length(n_prompt: int, max_tokens: int | None, limit: int, param: str) -> None:
    """Raise unless the context has room for the prompt and a token, if any is to be drawn."""
    if n_prompt == 0:
        raise BadRequestError(f"{param}: the prompt has no tokens", param=param)
    least = n_prompt + (max_tokens != 0)
    if least > limit:
        asked = f"at least {least} tokens ({n_prompt} in the {param})"
        raise too_long(limit, least, asked, param)


def room_of(max_tokens: int | None, limit: int) -> int:
    """Tokens of the context that a prompt which is made shorter leaves for its answer."""
    return max_tokens if max_tokens and max_tokens < limit else limit // ROOM


def check_size(n_characters: int, limit: int, param: str) -> None:
    """Refuse a prompt that is certain to be too long before spending seconds on its tokens."""
    if n_characters > limit * MAX_CHARACTERS:
        least = n_characters // MAX_CHARACTERS
        asked = f"at least {least} tokens ({n_characters} characters in the {param})"
        raise too_long(limit, least, asked, param)


def too_long(limit: int, tokens: int, asked: str, param: str) -> ContextLengthExceededError:
    """The error in words that clients look for: they shorten the conversation when they find them.

    LiteLLM, LangChain and aider each know another part of OpenAI's message, or its code.
    """
    return ContextLengthExceededError(
        f"This model's maximum context length is {limit} tokens. However, you requested {asked}."
        f" Please reduce the length of the {param} or completion. (context_length_exceeded)",
        param=param,
        tokens=tokens,
        limit=limit,
    )


def check_count(n_prompts: int, n: int, engine: Engine, param: str) -> None:
    """Raise if the request has more sequences than could ever be accepted."""
    if n_prompts * n > engine.largest_request:
        raise BadRequestError(
            f"{param}: {n_prompts} prompts with n = {n} are {n_prompts * n} sequences; "
            f"accepted: at most {engine.largest_request} in one request",
            param=param,
        )


def tell_lengths(call: Call[Ask], most: Sequence[int]) -> None:
    """Tell who wants more tokens than there is room for behind a prompt: agents ask for 32,000."""
    ending, least = call.ask.ending, min(most)
    asked = ending.max_tokens
    if asked is not None and ending.param is not None and asked > least:
        told = f"{ending.param}: {asked} is more than the context has room for"
        call.caller.tell(f"{told} after the prompt, which is {least}")


def tell_context(call: Call[Ask]) -> None:
    """Tell who wants a longer context than there is: clients ask for the same everywhere."""
    ask, most = call.ask, call.state.max_model_len
    if ask.context is not None and ask.context > most:
        wanted = f"{ask.context_param}: {ask.context} is more than this server's context"
        call.caller.tell(f"{wanted}, which is {most} (max_model_len)")


def check_priority(call: Call[Any], priority: int) -> None:
    """Raise unless who sent the request may go before others."""
    if priority < 0 and not (call.caller.is_admin or call.state.allow_high_priority):
        raise BadRequestError(
            f"priority: {priority} goes before the requests of others; accepted: from 0 on, and"
            " below 0 with an administrator's key (admin_api_key) or where the server was started"
            " with --allow-high-priority on",
            param="priority",
        )
