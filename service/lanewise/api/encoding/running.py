"""The one path from texts to their rows, whoever asks: tokens, queue, rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from starlette.requests import Request

from lanewise.api.encoding.fields import Cut, PromptName
from lanewise.api.errors import ApiError, BadRequestError, ContextLengthExceededError
from lanewise.api.generation.body import release_body
from lanewise.api.generation.delivery import to_api_error
from lanewise.api.generation.leaving import while_connected
from lanewise.api.generation.measuring import check_ids
from lanewise.api.shared.state import ServerState
from lanewise.engine.stream import EngineError
from lanewise.engine.text_queue import EncodingRequest, Floats, Ids
from lanewise.text.pooled_text import PooledText
from lanewise.text.whole_texts import Text, TooLongError

Input = Text | Sequence[int]  # a text, a pair, or token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Texts to be run, and how."""

    inputs: Sequence[Input]
    param: str  # the field that they are from
    cut: Cut = field(default_factory=Cut)
    prompt: PromptName = field(default_factory=PromptName)
    pooling: str | None = None
    normalize: bool | None = None


class Rows(NamedTuple):
    """A row for each text, or the rows of its tokens; and how many tokens all texts have."""

    rows: list[Floats]
    tokens: Sequence[Ids]
    n_tokens: int


async def run(wanted: Wanted, size: int, request: Request, state: ServerState) -> Rows:
    """Run texts that came in ``size`` bytes; given up when the client goes away."""
    pooled, engine = state.pooled, state.encoder
    check_count(wanted, state)
    made = await state.workers.read(size, partial(_tokens, wanted, pooled, state))
    made = replace(
        made,
        pooling=wanted.pooling,
        normalize=wanted.normalize,
        client=request.scope["client_number"],
    )
    release_body(request)
    work = engine.encode(made, trace_id=request.scope.get("trace_id"))
    try:
        rows = await while_connected(request, work)
    except EngineError as error:
        raise to_api_error(error) from error
    return Rows(rows, made.texts, sum(map(len, made.texts)))


def check_count(wanted: Wanted, state: ServerState) -> None:
    """Refuse no texts, and too many."""
    param, count, most = wanted.param, len(wanted.inputs), state.request_budgets.max_texts
    if not count:
        raise BadRequestError(f"{param}: the list is empty", param=param)
    if count > most:
        raise BadRequestError(
            f"{param}: {count} texts are too many; accepted: at most {most} (max_texts)",
            param=param,
        )


def _tokens(wanted: Wanted, pooled: PooledText, state: ServerState) -> EncodingRequest:
    limit = wanted.cut.limit(state.max_model_len)
    prompt = _prompt(wanted, pooled)
    texts: list[Ids] = [np.empty(0, np.uint32)] * len(wanted.inputs)
    types: list[Ids] | None = list(texts) if pooled.has_types else None
    places = [i for i, one in enumerate(wanted.inputs) if isinstance(one, str | tuple)]
    strings = [_with_prompt(wanted.inputs[place], prompt) for place in places]
    try:
        whole = pooled.whole.encode(strings, limit, wanted.cut.side)
    except TooLongError as error:
        place = places[error.index]
        raise _too_long(_name(wanted, place), error, limit) from None
    for place, one in zip(places, whole, strict=True):
        texts[place] = one.ids
        if types is not None:
            types[place] = one.types
    for place, given in enumerate(wanted.inputs):
        name = _name(wanted, place)
        if not isinstance(given, str | tuple):
            texts[place] = np.array(_cut_ids(given, limit, wanted.cut, name, state), np.uint32)
            if types is not None:
                types[place] = np.zeros(len(texts[place]), np.uint32)
        if not len(texts[place]):
            raise BadRequestError(f"{name}: the text has no tokens", param=name)
    return EncodingRequest(texts, types)


def _prompt(wanted: Wanted, pooled: PooledText) -> str:
    name, is_needed = wanted.prompt
    found = pooled.prompt(name)
    if found is None and not is_needed and not pooled.prompts:
        return ""
    if found is None:
        known = ", ".join(map(repr, pooled.prompts)) or "none: the model has no prompts"
        raise BadRequestError(
            f"prompt_name: {name!r} is no prompt of this model; accepted: {known}",
            param="prompt_name",
        )
    return found


def _with_prompt(text: Input, prompt: str) -> Text:
    assert isinstance(text, str | tuple)
    # Pairs are of models that have no prompts.
    return prompt + text if isinstance(text, str) else (text[0], text[1])


def _cut_ids(
    ids: Sequence[int], limit: int, cut: Cut, name: str, state: ServerState
) -> Sequence[int]:
    check_ids(ids, state.tokenizer.vocab_size, name)
    if len(ids) <= limit:
        return ids
    if cut.side is None:
        raise _too_long(name, TooLongError(0, len(ids), is_exact=True), limit)
    return ids[-limit:] if cut.side == "left" else ids[:limit]


def _name(wanted: Wanted, place: int) -> str:
    return wanted.param if len(wanted.inputs) == 1 else f"{wanted.param}[{place}]"


def _too_long(name: str, error: TooLongError, limit: int) -> ApiError:
    count = f"{error.n_tokens}" if error.is_exact else f"more than {error.n_tokens - 1}"
    return ContextLengthExceededError(
        f"{name}: the text has {count} tokens; accepted: at most {limit}, or truncate: true",
        param=name,
        tokens=error.n_tokens,
        limit=limit,
    )
