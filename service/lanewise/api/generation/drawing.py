"""An ``Ask`` in the engine's terms."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import Ask, Conversation, Prompts
from lanewise.api.generation.call import Call
from lanewise.api.generation.dialect import Prompt
from lanewise.api.generation.measuring import check_count, check_ids, check_length
from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.engine.base.request import (
    BACKGROUND,
    GenerationRequest,
    Grammar,
    SamplingParams,
)

SEED_MASK = (1 << 64) - 1


def lengths(call: Call[Ask], prompts: Sequence[Prompt]) -> list[int]:
    """How many tokens each prompt's answers may have; raises if a prompt does not fit."""
    ask, state = call.ask, call.state
    param, limit, asked = ask.input.param, state.max_model_len, ask.ending.max_tokens
    for prompt in prompts:
        check_length(len(prompt.ids), asked, limit, param)
    what = "n" if isinstance(ask.input, Conversation) else param
    check_count(len(prompts), ask.n_drawn, state.generator, what)
    left = [limit - len(prompt.ids) for prompt in prompts]
    return left if asked is None else [min(asked, most) for most in left]


def sampling_params(call: Call[Ask], most: Sequence[int]) -> list[SamplingParams]:
    """How each prompt's answers are drawn: as the request says, else as its model wants.

    Raises if ids are none of the model's.
    """
    _check_tokens(call, min(most))
    params = _params(call)
    return [replace(params, max_tokens=max_tokens) for max_tokens in most]


def _params(call: Call[Ask]) -> SamplingParams:
    """The same for answers of any length."""
    ask, state = call.ask, call.state
    sampling, ending, shown = ask.sampling, ask.ending, ask.shown

    def given(name: str) -> Any:
        value = getattr(sampling, name)
        return getattr(state.sampling_defaults, name) if value is None else value

    eos_ids = frozenset() if ending.ignores_eos else _ends(call)
    # Answers are compared by the probabilities of their tokens, shown or not.
    compares = shown.logprobs is None and ask.n_drawn > ask.n
    return SamplingParams(
        seed=(secrets.randbits(64) if sampling.seed is None else sampling.seed) & SEED_MASK,
        max_tokens=state.max_model_len,
        min_tokens=ending.min_tokens,
        temperature=given("temperature"),
        top_p=given("top_p"),
        top_k=max(given("top_k"), 0),
        min_p=given("min_p"),
        repetition_penalty=given("repetition_penalty"),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=tuple((int(key), value) for key, value in sampling.logit_bias.items()),
        allowed_token_ids=_unique(sampling.allowed_token_ids),
        stop_token_ids=eos_ids.union(ending.token_ids),
        logprobs=0 if compares else shown.logprobs,
        prompt_logprobs=shown.prompt_logprobs,
    )


def _ends(call: Call[Ask]) -> frozenset[int]:
    """Tokens that end an answer by themselves."""
    given, tokenizer = call.ask.input, call.state.tokenizer
    if tokenizer.fim is None or not (isinstance(given, Prompts) and given.has_gaps):
        return tokenizer.eos_ids
    return tokenizer.eos_ids | tokenizer.fim.ends


def _check_tokens(call: Call[Ask], max_tokens: int) -> None:
    ask, n_tokens = call.ask, call.state.tokenizer.vocab_size
    allowed = ask.sampling.allowed_token_ids or ()
    if len(allowed) > n_tokens:
        raise BadRequestError(
            f"allowed_token_ids: {len(allowed)} ids are more than there are tokens, {n_tokens}",
            param="allowed_token_ids",
        )
    check_ids([int(key) for key in ask.sampling.logit_bias], n_tokens, "logit_bias")
    check_ids(allowed, n_tokens, "allowed_token_ids")
    check_ids(ask.ending.token_ids, n_tokens, "stop_token_ids")
    least = ask.ending.min_tokens
    if least > max_tokens:
        limit = f"max_tokens, which is {max_tokens}"
        if max_tokens != ask.ending.max_tokens:  # the client said none, or the context is shorter
            limit = f"the context has room for after the prompt, which is {max_tokens}"
        raise BadRequestError(f"min_tokens: {least} is more than {limit}", param="min_tokens")


def _unique(ids: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(dict.fromkeys(ids))


def make_requests(
    call: Call[Ask],
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    adapter: LoadedAdapter | None,
    grammar: Grammar | None,
    expected: Sequence[int] = (),
) -> list[GenerationRequest]:
    """The sequences for each prompt, ``n_drawn`` of them, in the order of the answers.

    The number of the choice, not the place in the request, is part of the key of every draw: a
    prompt's answers do not depend on the prompts beside it. Prefixes are shared within a tenant.
    """
    ask, caller = call.ask, call.caller
    tenant = call.state.tenant_of(caller)
    return [
        GenerationRequest(
            prompt.ids,
            drawn_by,
            choice,
            # No salt of one tenant can be another's: tenants have no line break in them.
            cache_salt=f"{tenant}\n{ask.cache_salt or ''}",
            priority=ask.priority + (BACKGROUND if caller.is_background else 0),
            client=caller.client,
            adapter=adapter,
            # What guesses has no tower, or would read placeholders.
            # In the background guesses would lengthen the steps of others.
            max_draft=0 if prompt.pictures or caller.is_background else ask.sampling.max_draft,
            grammar=grammar,
            pictures=prompt.pictures,
            expected=expected,
        )
        for prompt, drawn_by in zip(prompts, params, strict=True)
        for choice in range(ask.n_drawn)
    ]
