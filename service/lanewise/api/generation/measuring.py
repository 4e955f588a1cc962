"""Whether a request fits the model and the server, before any work is spent on it."""

from collections.abc import Sequence

from starlette.types import Scope

from lanewise.api.errors import BadRequestError, ContextLengthExceededError
from lanewise.api.generation.ask import Ask
from lanewise.api.observing.notices import add_notice
from lanewise.api.shared.budgets import MAX_CHARACTERS
from lanewise.api.shared.state import ServerState
from lanewise.engine.engine import Engine


def check_ids(ids: Sequence[int], n_tokens: int, param: str) -> None:
    """Raise unless all ids are tokens of the model."""
    if (largest := max(ids, default=0)) >= n_tokens:
        raise BadRequestError(
            f"{param}: {largest} is not a token; accepted: 0 to {n_tokens - 1}", param=param
        )


def check_length(n_prompt: int, max_tokens: int | None, limit: int, param: str) -> None:
    """Raise unless the prompt and its answer fit the context; without a limit one token must."""
    if n_prompt == 0:
        raise BadRequestError(f"{param}: the prompt has no tokens", param=param)
    if max_tokens is None and n_prompt >= limit:
        asked = f"at least {n_prompt + 1} tokens ({n_prompt} in the {param})"
        raise too_long(limit, n_prompt + 1, asked, param)
    if max_tokens is not None and n_prompt + max_tokens > limit:
        parts = f"{n_prompt} in the {param}, {max_tokens} in the completion"
        tokens = n_prompt + max_tokens
        least = "at least " if n_prompt > limit else ""  # its other tokens are not even made
        raise too_long(limit, tokens, f"{least}{tokens} tokens ({parts})", param)


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


def tell_context(ask: Ask, scope: Scope, state: ServerState) -> None:
    """Tell who wants a longer context than there is: clients ask for the same everywhere."""
    if ask.context is not None and ask.context > state.max_model_len:
        wanted = f"{ask.context_param}: {ask.context} is more than this server's context"
        add_notice(scope, f"{wanted}, which is {state.max_model_len} (max_model_len)")


def check_priority(ask: Ask, scope: Scope, state: ServerState) -> None:
    """Raise unless who sent the request may go before others."""
    if ask.priority < 0 and not (scope["is_admin"] or state.allow_high_priority):
        raise BadRequestError(
            f"priority: {ask.priority} goes before the requests of others; accepted: from 0 on, and"
            " below 0 with an administrator's key (admin_api_key) or where the server was started"
            " with --allow-high-priority on",
            param="priority",
        )
