"""The one path of all endpoints from texts to their rows: tokens, queue, rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from lanewise.api.encoding.fields import Cut, PromptName, Texts
from lanewise.api.errors import (
    ApiError,
    BadRequestError,
    ClientGoneError,
    ContextLengthExceededError,
)
from lanewise.api.generation.call import Call
from lanewise.api.generation.delivery import to_api_error
from lanewise.api.generation.leaving import while_connected
from lanewise.api.generation.measuring import check_ids
from lanewise.api.shared.state import ServerState
from lanewise.engine.base.stream import EngineError
from lanewise.engine.scheduling.text_queue import EncodingRequest, Floats, Ids
from lanewise.text.pooled_text import PooledText
from lanewise.text.whole_texts import Text, TooLongError, WholeText, most_characters

Input = Text | Sequence[int]  # a text, a pair, or token ids
FLOAT_BYTES = 30  # of a row, and of its JSON while that is made
MAX_FLOATS = 1 << 23  # of rows of tokens in an answer: as JSON 100 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Texts to be run, and how."""

    inputs: Sequence[Input]
    param: str  # the field that they are from
    cut: Cut = field(default_factory=Cut)
    prompt: PromptName = field(default_factory=PromptName)
    pooling: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None  # of a vector that are asked for, if not all
    are_queries: bool = False  # of models that compare tokens; else documents


class Rows(NamedTuple):
    """A row for each text, or the rows of its tokens; and how many tokens all texts have."""

    rows: list[Floats]
    n_tokens: int

    @property
    def size(self) -> int:
        """Floats in all rows."""
        return sum(row.size for row in self.rows)


def inputs_of(given: Texts) -> list[Input]:
    """The texts in one form, whichever of the four they came in."""
    if isinstance(given, str):
        return [given]
    if not given:
        return []
    return [given] if isinstance(given[0], int) else list(given)


async def run(call: Call[Any], wanted: Wanted, *others: Wanted, times: int = 1) -> Rows:
    """Run texts; given up when the client goes away.

    ``others`` go with them, and their rows are after those; they are pooled alike. What the
    request brought is in them so many ``times``.
    """
    state, caller = call.state, call.caller
    every = (wanted, *others)
    for one in every:
        check_count(one.param, len(one.inputs), state)
    has_left = Event()
    compared = state.pooled.compared
    pooling = wanted.pooling if compared is None else "none"

    def check() -> None:
        if has_left.is_set():
            raise ClientGoneError("the client has left")

    def made() -> EncodingRequest:
        texts: list[Ids] = []
        types: list[Ids] | None = [] if state.pooled.has_types else None
        seen: list[int] | None = None if compared is None else []
        for one in every:
            _add_tokens(one, texts, types, seen, state, check)
        if pooling == "none":
            _check_floats(wanted, texts, state)
        return EncodingRequest(
            texts,
            types,
            pooling=pooling,
            normalize=wanted.normalize,
            client=caller.client,
            seen=seen,
        )

    async def work() -> Rows:
        asked = await state.workers.read(call.size * times, made)
        n_rows = sum(map(len, asked.texts)) if pooling == "none" else len(asked.texts)
        call.hold.keep(FLOAT_BYTES * n_rows * state.encoder.config.dims)
        caller.n_encoded += sum(map(len, asked.texts))
        rows = await state.encoder.encode(asked, trace_id=caller.trace_id)
        if compared is not None:
            sides = [one.are_queries for one in every for _ in one.inputs]
            rows = [
                row[compared.kept(text, side)]
                for row, text, side in zip(rows, asked.texts, sides, strict=True)
            ]
        return Rows(rows, sum(map(len, asked.texts)))

    try:
        return await while_connected(call.receive, work())
    except EngineError as error:
        raise to_api_error(error) from error
    finally:
        has_left.set()


def check_count(param: str, count: int, state: ServerState) -> None:
    """Refuse no texts, and too many."""
    most = state.request_budgets.max_texts
    if not count:
        raise BadRequestError(f"{param}: the list is empty", param=param)
    if count > most:
        raise BadRequestError(
            f"{param}: {count} texts are too many; accepted: at most {most} (max_texts)",
            param=param,
        )


def _check_floats(wanted: Wanted, texts: Sequence[Ids], state: ServerState) -> None:
    """Refuse more rows of tokens than fit into an answer."""
    n_tokens, most = sum(map(len, texts)), max(1, MAX_FLOATS // state.encoder.config.dims)
    if n_tokens > most:
        raise BadRequestError(
            f"{wanted.param}: a row for each of {n_tokens} tokens is too much; accepted: at most"
            f" {most} tokens in a request for rows of tokens",
            param=wanted.param,
        )


def _add_tokens(
    wanted: Wanted,
    all_texts: list[Ids],
    all_types: list[Ids] | None,
    all_seen: list[int] | None,
    state: ServerState,
    check: Callable[[], None],
) -> None:
    pooled, compared, cut = state.pooled, state.pooled.compared, wanted.cut
    limit = cut.limit(state.max_model_len)
    if compared is not None:
        limit = compared.limit(wanted.are_queries, limit)
        if wanted.are_queries and compared.cuts_queries:
            cut = cut._replace(side=cut.side or "right")
    _check_room(wanted, limit, pooled)
    prompt = _prompt(wanted, pooled)
    texts: list[Ids] = [np.empty(0, np.uint32)] * len(wanted.inputs)
    types: list[Ids] = list(texts)
    places = [i for i, one in enumerate(wanted.inputs) if isinstance(one, str | tuple)]
    strings = [_with_prompt(wanted.inputs[place], prompt) for place in places]
    try:
        whole = pooled.whole.encode(strings, limit, cut.side, check)
    except TooLongError as error:
        place = places[error.index]
        raise _too_long(_name(wanted, place), error, limit) from None
    for place, one in zip(places, whole, strict=True):
        texts[place], types[place] = one
    for place, given in enumerate(wanted.inputs):
        name = _name(wanted, place)
        if not isinstance(given, str | tuple):
            texts[place] = np.array(_cut_ids(given, limit, cut, name, state), np.uint32)
            types[place] = np.zeros(len(texts[place]), np.uint32)
        if not len(texts[place]):
            raise BadRequestError(f"{name}: the text has no tokens", param=name)
    if all_seen is not None and compared is not None:
        for place, one in enumerate(map(WholeText, texts, types)):
            seen = len(one.ids)
            if wanted.are_queries:
                one, seen = compared.expanded(one, state.max_model_len)
            texts[place], types[place] = one
            all_seen.append(seen)
    all_texts += texts
    if all_types is not None:
        all_types += types


def _check_room(wanted: Wanted, limit: int, pooled: PooledText) -> None:
    """Refuse to cut texts to the special tokens around them, or to fewer."""
    first, whole = wanted.inputs[0], pooled.whole  # the others are of its kind
    n_special = whole.n_special_of_pair if isinstance(first, tuple) else whole.n_special
    if isinstance(first, str | tuple) and wanted.cut.at is not None and limit <= n_special:
        param = "truncate_prompt_tokens"
        raise BadRequestError(
            f"{param}: of {limit} tokens none are of the text; accepted: -1, or {n_special + 1} and"
            " more",
            param=param,
        )


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
    if error.n_characters is not None:
        most = most_characters(limit)
        return ContextLengthExceededError(
            f"{name}: the text has {error.n_characters} characters; accepted: at most {most} of a"
            f" text of at most {limit} tokens, or truncate: true",
            param=name,
            tokens=error.n_tokens,
            limit=limit,
        )
    count = f"{error.n_tokens}" if error.is_exact else f"more than {error.n_tokens - 1}"
    return ContextLengthExceededError(
        f"{name}: the text has {count} tokens; accepted: at most {limit}, or truncate: true",
        param=name,
        tokens=error.n_tokens,
        limit=limit,
    )
