"""From a checked request to the engine's terms, and from drawn tokens back to text."""

import secrets
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from starlette.types import Scope

from lanewise.api.budgets import MAX_CHARACTERS
from lanewise.api.errors import (
    ApiError,
    BadRequestError,
    ContextLengthExceededError,
    InternalError,
    ModelNotFoundError,
    RateLimitExceededError,
    RequestTimeoutError,
    UnavailableError,
)
from lanewise.api.schemas import GenerationFields
from lanewise.api.state import ServerState
from lanewise.engine.adapters import AdapterGoneError, LoadedAdapter
from lanewise.engine.constraint import ConstraintError
from lanewise.engine.engine import Engine
from lanewise.engine.request import GenerationRequest, Grammar, SamplingParams
from lanewise.engine.stream import (
    EngineError,
    EngineStoppedError,
    QueueFullError,
    QueueTimeoutError,
    TimeLimitError,
    TokenOutput,
)
from lanewise.text.detokenizer import StopMatcher, StopStrings, StreamDecoder
from lanewise.text.tokenizer import Tokenizer

SEED_MASK = (1 << 64) - 1


def sampling_params(
    fields: GenerationFields,
    state: ServerState,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """What the engine is told about drawing: what a request says, else what its model wants."""
    usual, said = state.sampling_defaults, fields.model_fields_set

    def given(name: str) -> Any:
        return getattr(fields if name in said else usual, name)

    n_tokens = state.tokenizer.vocab_size
    n_allowed = len(fields.allowed_token_ids or ())
    if n_allowed > n_tokens:
        raise BadRequestError(
            f"allowed_token_ids: {n_allowed} ids are more than there are tokens, {n_tokens}",
            param="allowed_token_ids",
        )
    bias = tuple((int(key), value) for key, value in fields.logit_bias.items())
    check_ids([token for token, _ in bias], n_tokens, "logit_bias")
    check_ids(fields.allowed_token_ids or (), n_tokens, "allowed_token_ids")
    check_ids(fields.stop_token_ids, n_tokens, "stop_token_ids")
    if fields.min_tokens > max_tokens:
        raise BadRequestError(
            f"min_tokens: {fields.min_tokens} is more than max_tokens, which is {max_tokens}",
            param="min_tokens",
        )
    eos_ids = frozenset() if fields.ignore_eos else state.tokenizer.eos_ids
    return SamplingParams(
        seed=(secrets.randbits(64) if fields.seed is None else fields.seed) & SEED_MASK,
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        temperature=given("temperature"),
        top_p=given("top_p"),
        top_k=max(given("top_k"), 0),
        min_p=given("min_p"),
        repetition_penalty=given("repetition_penalty"),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=bias,
        allowed_token_ids=_unique(fields.allowed_token_ids),
        stop_token_ids=eos_ids.union(fields.stop_token_ids),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _unique(ids: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(dict.fromkeys(ids))


def check_ids(ids: Sequence[int], n_tokens: int, param: str) -> None:
    """Raise unless all ids are tokens of the model."""
    if (largest := max(ids, default=0)) >= n_tokens:
        raise BadRequestError(
            f"{param}: {largest} is not a token; accepted: 0 to {n_tokens - 1}", param=param
        )


def check_length(n_prompt: int, max_tokens: int, limit: int, param: str) -> None:
    """Raise unless the prompt and its answer fit the context."""
    if n_prompt == 0:
        raise BadRequestError(f"{param}: the prompt has no tokens", param=param)
    if n_prompt + max_tokens > limit:
        raise ContextLengthExceededError(
            f"prompt has {n_prompt} tokens and max_tokens is {max_tokens}; "
            f"the context holds {limit}",
            param=param,
        )


def check_size(n_characters: int, limit: int, param: str) -> None:
    """Refuse a prompt that is certain to be too long before spending seconds on its tokens."""
    if n_characters > limit * MAX_CHARACTERS:
        raise ContextLengthExceededError(
            f"{param}: {n_characters} characters are too long; the context holds {limit} tokens",
            param=param,
        )


def check_count(n_prompts: int, n: int, engine: Engine, param: str) -> None:
    """Raise if the request has more sequences than could ever be accepted."""
    if n_prompts * n > engine.largest_request:
        raise BadRequestError(
            f"{param}: {n_prompts} prompts with n = {n} are {n_prompts * n} sequences; "
            f"accepted: at most {engine.largest_request} in one request",
            param=param,
        )


def check_priority(priority: int, scope: Scope, state: ServerState) -> None:
    """Raise unless who sent the request may go before others."""
    if priority < 0 and not (scope["is_admin"] or state.allow_high_priority):
        raise BadRequestError(
            f"priority: {priority} goes before the requests of others; accepted: from 0 on, and"
            " below 0 with an administrator's key (admin_api_key) or where the server was started"
            " with --allow-high-priority on",
            param="priority",
        )


def make_requests(
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    fields: GenerationFields,
    client: int,
    tenant: str,
    adapter: LoadedAdapter | None = None,
    grammar: Grammar | None = None,
) -> list[GenerationRequest]:
    """The sequences for each prompt, `fields.n_drawn` of them, in the order of the answers.

    The number of the choice, not the place in the request, is part of the key of every draw: a
    prompt's answers do not depend on the prompts beside it. Prefixes are shared within a tenant.
    """
    return [
        GenerationRequest(
            prompt,
            params,
            choice,
            # No salt of one tenant can be another's: numbers have no line break in them.
            cache_salt=f"{tenant}\n{fields.cache_salt or ''}",
            priority=fields.priority,
            client=client,
            adapter=adapter,
            max_draft=fields.speculative_n_max,
            grammar=grammar,
        )
        for prompt in prompts
        for choice in range(fields.n_drawn)
    ]


class Piece(NamedTuple):
    """What one token adds to an answer; its text may be empty, or belong to tokens before it."""

    output: TokenOutput
    text: str
    finish_reason: str | None


class Answer:
    """The text of one sequence as it grows."""

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        fields: GenerationFields,
        tokenizer: Tokenizer,
        stops: StopStrings,
        *,
        continues: bool,
        shown: Collection[int] = (),
        marked: bool = False,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._decoder = StreamDecoder(
            tokenizer,
            skip_special=fields.skip_special_tokens,
            continues=continues,
            shown=shown,
            marked=marked,
        )
        self._matcher = StopMatcher(stops, fields.include_stop_str_in_output)
        self._include_stop = fields.include_stop_str_in_output
        self._min_tokens = fields.min_tokens

    def push(self, output: TokenOutput) -> Piece:
        """Take the next output of the engine."""
        reason = output.finish_reason
        text = ""
        if output.sampled is not None:
            self.token_ids.append(output.sampled.token)
            if reason != "stop" or output.ends_complete or self._include_stop:
                text = self._decoder.push(output.sampled.token)
        if reason is not None:
            text += self._decoder.flush()
        # Stop strings count from the token after the first min_tokens on.
        if len(self.token_ids) > self._min_tokens:
            text, found = self._matcher.push(text)
            if reason is not None and not found:
                text += self._matcher.flush()
                found = self._matcher.matched is not None
            if found:
                reason = "stop"
        self.finish_reason = reason
        return Piece(output, text, reason)


def to_api_error(error: EngineError) -> ApiError:
    """An error of the engine as an HTTP answer."""
    if isinstance(error, QueueFullError):
        headers = {"retry-after": str(error.retry_after_s)}
        return RateLimitExceededError(str(error), headers=headers)
    if isinstance(error, QueueTimeoutError):
        headers = {"retry-after": str(error.retry_after_s)}
        return UnavailableError(str(error), code="queue_timeout", headers=headers)
    if isinstance(error, TimeLimitError):
        # OpenAI's clients ask again after any 5xx, unless they are told not to.
        return RequestTimeoutError(str(error), headers={"x-should-retry": "false"})
    if isinstance(error, AdapterGoneError):
        return ModelNotFoundError(str(error), param="model")
    if isinstance(error, EngineStoppedError):
        return UnavailableError(str(error), headers={"retry-after": "1"})
    if isinstance(error, ConstraintError):
        return BadRequestError(str(error))
    return InternalError(str(error))
