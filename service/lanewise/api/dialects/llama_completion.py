"""``/completion``: prompts in the words of llama.cpp's server."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from lanewise.api.dialects.llama_fields import LlamaSampling, Whole
from lanewise.api.dialects.llama_images import (
    NumberedImage,
    PromptObject,
    beside_prompt,
    in_prompt,
)
from lanewise.api.errors import ApiError, BadRequestError, ContextLengthExceededError
from lanewise.api.generation.ask import (
    Ask,
    Constraint,
    Delivery,
    Ending,
    Illustrated,
    Infill,
    Prompts,
    Shown,
)
from lanewise.api.generation.dialect import About, Dialect
from lanewise.api.generation.events import Choice, End, Piece, Progress, Text
from lanewise.api.generation.logprobs import ChatLogprobs
from lanewise.api.generation.writing import dumps, dumps_long
from lanewise.api.http.error_forms import ErrorForm
from lanewise.api.openapi.other_answers import LLAMA_ERROR
from lanewise.api.schemas import (
    MAX_BIAS,
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    FirstProblemOnly,
    Schema,
    TokenIds,
)
from lanewise.engine.base.stream import Sampled
from lanewise.text.grammar import GrammarSource

STOP_TYPES = {"stop": "eos", "length": "limit"}
RANDOM_SEED = (1 << 32) - 1


Item = str | TokenIds | PromptObject
Items = Annotated[list[Item], FirstProblemOnly()]


class LlamaCompletionRequest(LlamaSampling):
    """Body of ``POST /completion``: fields that are not known are named in a header."""

    model_config = ConfigDict(extra="allow")

    prompt: Item | Items
    model: str | None = None
    n_predict: Whole = Field(-1, ge=-2, lt=2**31, description="Below 0: to the context's end.")
    max_tokens: Whole | None = Field(None, ge=-2, lt=2**31, description="n_predict.")
    n_cmpl: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    n_probs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    grammar: str = Field("", description="A grammar in llama.cpp's notation, or Lark's.")
    json_schema: Schema | None = None
    logit_bias: dict[str, Any] | Annotated[list[list[Any]], FirstProblemOnly()] = Field(
        default_factory=list, description="Token ids, each with a number, or false for never."
    )
    ignore_eos: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = Field(False, description="A stream tells how much of it is read.")
    cache_prompt: bool = Field(True, description="Prefixes are always looked for in the cache.")
    id_slot: Whole = Field(-1, description="Any slot is as good.")
    lora: list[Any] = Field(default_factory=list, description="Not supported: adapters are models.")
    image_data: Annotated[list[NumberedImage], FirstProblemOnly()] = Field(
        default_factory=list, description="Images beside a prompt that is a string."
    )

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; None: as many as there is room for."""
        n = self.n_predict if self.max_tokens is None else self.max_tokens
        return n if n >= 0 else None


def ask(body: LlamaCompletionRequest) -> Ask:
    """What a request asks for."""
    if body.lora:
        message = "lora: not supported: adapters are asked for as model; accepted: none"
        raise BadRequestError(message, param="lora")
    constraint = None
    if body.grammar and body.json_schema is not None:
        message = "json_schema: only one of grammar and json_schema can be used"
        raise BadRequestError(message, param="json_schema")
    if body.grammar:
        constraint = Constraint("grammar", GrammarSource.from_grammar, body.grammar)
    elif body.json_schema is not None:
        constraint = Constraint("json_schema", GrammarSource.from_json_schema, body.json_schema)
    return Ask(
        input=Prompts(items=_items(body)),
        model=body.model,
        constraint=constraint,
        sampling=body.sampling(_bias(body.logit_bias)),
        ending=Ending(
            max_tokens=body.limit,
            param="n_predict" if body.max_tokens is None else "max_tokens",
            strings=body.stops,
            ignores_eos=body.ignore_eos,
        ),
        shown=Shown(logprobs=body.n_probs or None, token_ids=True),
        delivery=Delivery(
            stream=body.stream, running_usage=body.timings_per_token, progress=body.return_progress
        ),
        n=body.n_cmpl,
        notices=tuple(body.notices()),
    )


def _items(body: LlamaCompletionRequest) -> list[str | list[int] | Infill | Illustrated]:
    """The prompts in one form."""
    prompt = body.prompt
    if body.image_data:
        if not isinstance(prompt, str):
            message = "image_data: beside a prompt that is no string; accepted: multimodal_data"
            raise BadRequestError(message, param="image_data")
        return [beside_prompt(prompt, body.image_data)]
    if not isinstance(prompt, list):
        return [_item(prompt, "prompt")]
    if not prompt:
        raise BadRequestError("prompt: the list is empty", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if ids:
        return [ids]
    items = enumerate(item for item in prompt if not isinstance(item, int))
    return [_item(item, f"prompt[{i}]") for i, item in items]


def _item(item: Item, param: str) -> str | list[int] | Illustrated:
    return in_prompt(item, param) if isinstance(item, PromptObject) else item


def _bias(given: dict[str, Any] | list[list[Any]]) -> dict[str, float]:
    """What is added to the logits of tokens, by their ids."""
    pairs = given.items() if isinstance(given, dict) else given
    made: dict[str, float] = {}
    for i, pair in enumerate(pairs):
        token, value = pair if len(pair) == 2 else (None, None)
        name, bias = _token_name(token), _number(value)
        if name is None or bias is None:
            raise BadRequestError(
                f"logit_bias[{i}]: accepted: a token id with a number from -100 to 100 or false",
                param="logit_bias",
            )
        made[name] = bias
    return made


def _token_name(token: Any) -> str | None:
    """A token's id in digits; None if it is none."""
    if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 10**9:
        return str(token)
    is_id = isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 10
    return token if is_id else None


def _number(value: Any) -> float | None:
    """A bias in our terms; None if it is none."""
    if value is False:
        return -MAX_BIAS
    if value is True or not isinstance(value, int | float):
        return None
    return value if -MAX_BIAS <= value <= MAX_BIAS else None


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as clients of llama.cpp's server read it."""
    too_long = isinstance(error, ContextLengthExceededError)
    kind = "exceed_context_size_error" if too_long else error.type
    return {"error": {"code": error.status, "message": error.message, "type": kind}}


ERRORS = ErrorForm("LlamaServerError", LLAMA_ERROR, error_body)


class LlamaCompletionWire:
    """An object, or a list of them where there is more than one answer; or events."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._scored = about.ask.shown.logprobs is not None
        n = len(about.prompts) * about.ask.n
        self._counts = [0] * n  # of tokens, of each answer
        self._waiting: list[list[Sampled]] = [[] for _ in range(n)]  # that no event has told yet
        self._lines = [False] * n  # whether an answer has a line break

    def first(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def progress(self, progress: Progress) -> str:
        """How much of the prompt is read."""
        shown = {"index": 0, "content": "", "tokens": [], "stop": False}
        return f"data: {dumps(shown | {'prompt_progress': progress.to_json()})}\n\n"

    def piece(self, piece: Piece) -> Iterator[str]:
        """An event for text, and another for an end."""
        index = piece.choice
        if piece.token is not None:
            self._counts[index] += 1
            self._waiting[index].append(piece.token)
        text = "".join(event.text for event in piece.events if isinstance(event, Text))
        self._lines[index] |= "\n" in text
        if text:
            yield _event(self._part(index, text))
        if piece.events and isinstance(end := piece.events[-1], End):
            part = self._part(index, "")
            yield _event(part | self._ending(index, end, self._counts[index]))

    def last(self) -> Iterable[str]:
        """Nothing: each answer's end says that it is over."""
        return ()

    def failed(self, error: ApiError) -> Iterator[str]:
        """An error object as an event."""
        yield _event(error_body(error))

    def whole(self, choices: Sequence[Choice]) -> Iterator[str]:
        """All of each answer."""
        made = []
        for index, choice in enumerate(choices):
            tokens = [token for token in choice.tokens if token is not None]
            self._lines[index] = "\n" in choice.text
            shown = self._said(index, choice.text, tokens, len(tokens))
            made.append(shown | self._ending(index, choice.end, len(tokens)))
        yield dumps_long(made if len(made) > 1 else made[0])

    def _part(self, index: int, text: str) -> dict[str, Any]:
        tokens, self._waiting[index] = self._waiting[index], []
        part = self._said(index, text, tokens, self._counts[index])
        if self._about.ask.delivery.running_usage:
            part["timings"] = self._timings(self._counts[index])
        return part

    def _said(self, index: int, text: str, tokens: list[Sampled], count: int) -> dict[str, Any]:
        """A part of an answer, or all of it."""
        shown = {
            "index": index,
            "content": text,
            "tokens": [token.token for token in tokens],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": count,
            "tokens_evaluated": len(self._about.prompt_of(index).ids),
        }
        if self._scored:
            shown["completion_probabilities"] = [self._score(token) for token in tokens]
        return shown

    def _score(self, token: Sampled) -> dict[str, Any]:
        names = self._about.names
        top = [{"id": id_, **ChatLogprobs.entry(names, id_, value)} for id_, value in token.top]
        own = ChatLogprobs.entry(names, token.token, token.logprob)
        return {"id": token.token, **own, "top_logprobs": top}

    def _ending(self, index: int, end: End | None, count: int) -> dict[str, Any]:
        """Why an answer is over, and all about it."""
        about = self._about
        reason, word = ("length", None) if end is None else (end.reason, end.stop)
        return {
            "stop": True,
            "model": about.model,
            "prompt": about.names.text(about.prompt_of(index).ids, special=True),
            "generation_settings": settings_of(about),
            "has_new_line": self._lines[index],
            "truncated": False,
            "stop_type": "word" if word is not None else STOP_TYPES.get(reason, "eos"),
            "stopping_word": word or "",
            "tokens_cached": about.usage.cached_tokens,
            "timings": self._timings(count),
        }

    def _timings(self, count: int) -> dict[str, Any]:
        usage, times = self._about.usage, self._about.usage.times
        computed = usage.prompt_tokens - usage.cached_tokens
        prompt_ms, answer_ms = 1e3 * times.prompt_s, 1e3 * times.answer_s
        return {
            "cache_n": usage.cached_tokens,
            "prompt_n": computed,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / max(computed, 1),
            "prompt_per_second": 1e3 * computed / max(prompt_ms, 1e-3),
            "predicted_n": count,
            "predicted_ms": answer_ms,
            "predicted_per_token_ms": answer_ms / max(count, 1),
            "predicted_per_second": 1e3 * count / max(answer_ms, 1e-3),
        }


def settings_of(about: About) -> dict[str, Any]:
    """What an answer was asked to be, as far as the request says."""
    sampling, ending = about.ask.sampling, about.ask.ending
    said = {
        "n_ctx": about.context,
        "n_predict": -1 if ending.max_tokens is None else ending.max_tokens,
        "seed": RANDOM_SEED if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(ending.strings),
        "ignore_eos": ending.ignores_eos,
        "stream": about.ask.delivery.stream,
        "n_probs": about.ask.shown.logprobs or 0,
    }
    return {name: value for name, value in said.items() if value is not None}


def _event(value: dict[str, Any]) -> str:
    return f"data: {dumps(value)}\n\n"


LLAMA_COMPLETION = Dialect(
    name="llama_completion",
    summary="Continue prompts, in llama.cpp's words",
    body=LlamaCompletionRequest,
    ask=ask,
    wire=LlamaCompletionWire,
    progress=LlamaCompletionWire.progress,
    errors=ERRORS,
)
