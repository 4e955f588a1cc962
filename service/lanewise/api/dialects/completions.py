"""``/v1/completions``: prompts as text or token ids, with OpenAI's older log-probabilities."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from lanewise.api.dialects.openai_fields import (
    constraint_of,
    delivery_of,
    ending_of,
    sampling_of,
)
from lanewise.api.dialects.openai_wire import OpenAiWire
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import Ask, Infill, Prompts, Shown
from lanewise.api.generation.dialect import About, Dialect
from lanewise.api.generation.events import Choice, End, Piece, Text
from lanewise.api.generation.logprobs import LegacyLogprobs
from lanewise.api.generation.writing import dumps_long, dumps_text
from lanewise.api.schemas import (
    MAX_TOP_LOGPROBS,
    FirstProblemOnly,
    GenerationFields,
    Strings,
    TokenIds,
    refuse,
)
from lanewise.engine.base.stream import Sampled

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationFields):
    """Body of ``POST /v1/completions``."""

    prompt: str | Strings | TokenIds | Annotated[list[TokenIds], FirstProblemOnly()]
    suffix: str = Field("", description="What is behind the gap that the answer fills.")
    best_of: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.best_of and self.best_of < self.n:
            raise refuse("best_of", f"{self.best_of} is less than n, which is {self.n}")
        if self.stream and (self.best_of or 0) > self.n:
            raise refuse("best_of", "more than n only without stream: the best are known last")
        return self


def ask(body: CompletionRequest) -> Ask:
    """What a request asks for."""
    return Ask(
        input=Prompts(items=_items(body), add_special_tokens=body.add_special_tokens),
        model=body.model,
        constraint=constraint_of(body),
        sampling=sampling_of(body),
        ending=ending_of(body, DEFAULT_MAX_TOKENS),
        shown=Shown(
            logprobs=body.logprobs,
            prompt_logprobs=_prompt_logprobs(body),
            prompt_scores=body.prompt_logprobs,
            echo=body.echo,
            token_ids=body.return_token_ids,
            receipt=body.receipt,
            special_tokens=not body.skip_special_tokens,
        ),
        delivery=delivery_of(body),
        n=body.n,
        best_of=body.best_of,
        priority=body.priority,
        last_prompt_tokens=body.truncate_prompt_tokens,
        cache_salt=body.cache_salt,
    )


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """As many as are shown anywhere."""
    asked = (body.logprobs if body.echo else None, body.prompt_logprobs)
    return max((count for count in asked if count is not None), default=None)


def _items(body: CompletionRequest) -> list[Any]:
    """The prompts, and what is behind the gap after each of them."""
    prompts = _prompts(body)
    if not body.suffix:
        return prompts
    return [Infill(prefix=prompt, suffix=body.suffix) for prompt in prompts]


def _prompts(body: CompletionRequest) -> list[Any]:
    """The prompts in one form, whichever of the four they came in."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequestError("prompt: the list is empty", param="prompt")
    return [given] if isinstance(given[0], int) else given  # a list of token ids is one prompt


class CompletionWire(OpenAiWire):
    """Prompt text first when it is to be echoed, then the answer's."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self._shown = about.ask.shown
        self._offsets: dict[int, int] = {}  # characters of each choice so far

    def piece(self, piece: Piece) -> Iterator[str]:
        """One chunk, unless a token adds nothing."""
        if self.says_nothing(piece):
            return
        text, end = "", None
        for event in piece.events:
            if isinstance(event, Text):
                text += event.text
            elif isinstance(event, End):
                end = event
        logprobs = None
        if self._shown.logprobs is not None:
            logprobs = LegacyLogprobs()
        if piece.is_first:
            echo = self._echo(piece.choice, piece.prompt_scores, logprobs)
            self._offsets[piece.choice] = len(echo)
        else:
            echo = ""
        if logprobs is not None:
            offset = self._offsets[piece.choice]
            self._add(logprobs, piece.token, offset)
            self._offsets[piece.choice] = offset + len(text)
        shown = "null" if logprobs is None else dumps_long(logprobs.to_json())
        content = f'"text":{dumps_text(echo + text)},"logprobs":{shown}{self.ids_of(piece)}'
        token = -1 if piece.token is None else piece.token.token
        yield self.chunk(piece.choice, content, end, token)

    def whole_choice(self, choice: Choice) -> dict[str, Any]:
        """The text."""
        text = self._echo(choice.index, (), None) + choice.text
        return {"text": text, **self.prompt_scores(choice)}

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """The log-probabilities of the prompt, if it is echoed, and of the answer."""
        if self._shown.logprobs is None:
            return None
        made = LegacyLogprobs()
        offset = len(self._echo(choice.index, choice.prompt_scores, made))
        for text, token in zip(choice.texts, choice.tokens, strict=True):
            self._add(made, token, offset)
            offset += len(text)
        return made.to_json()

    def _add(self, logprobs: LegacyLogprobs, token: Sampled | None, offset: int) -> None:
        if token is not None:
            logprobs.add(self.about.names, token.token, token, offset)

    def _echo(self, choice: int, scores: Sequence[Sampled], logprobs: LegacyLogprobs | None) -> str:
        """The prompt's text, if it is to be echoed; its scores are added to ``logprobs``."""
        if not self._shown.echo:
            return ""
        prompt, names = self.about.prompt_of(choice), self.about.names
        text = prompt.text
        if text is None:
            text = names.text(prompt.ids, special=self._shown.special_tokens)
        if logprobs is not None:
            offsets = names.offsets(prompt.ids, special=self._shown.special_tokens)
            scores = [score._replace(top=score.top[: self._shown.logprobs]) for score in scores]
            for token, score, offset in zip(prompt.ids, [None, *scores], offsets, strict=True):
                logprobs.add(names, token, score, min(offset, len(text)))
        return text


COMPLETIONS = Dialect(
    name="create_completion",
    summary="Continue prompts",
    body=CompletionRequest,
    ask=ask,
    wire=CompletionWire,
    progress=CompletionWire.progress,
)
