"""``POST /v1/completions``: prompts as text or token ids, with OpenAI's older log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.body import find_adapter, read_request
from lanewise.api.errors import BadRequestError
from lanewise.api.generation import (
    Answer,
    Piece,
    check_count,
    check_ids,
    check_length,
    check_priority,
    check_size,
    make_requests,
    sampling_params,
)
from lanewise.api.logprobs import LegacyLogprobs, TokenNames
from lanewise.api.reply import Reply, dumps_text
from lanewise.api.schemas import CompletionRequest
from lanewise.api.sse import respond
from lanewise.api.state import ServerState
from lanewise.api.structured import grammar_of
from lanewise.engine.request import SamplingParams
from lanewise.text.detokenizer import StreamDecoder

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model sees it and, when it was given so, as text."""

    ids: list[int]
    text: str | None = None


async def create_completion(request: Request, state: ServerState) -> Response:
    """Answer one or more prompts."""
    body, size = await read_request(request, state, CompletionRequest)
    check_priority(body.priority, request.scope, state)
    prompts, params, reply = await state.off_loop(size, lambda: prepare(body, state))
    ids = [prompt.ids for prompt in prompts]
    grammar = await grammar_of(body, state, request)
    client, adapter = request.scope["client_number"], find_adapter(body.model, state)
    requests = make_requests(ids, params, body, client, state.tenant_of(client), adapter, grammar)
    return await respond(request, state, requests, reply)


def prepare(
    body: CompletionRequest, state: ServerState
) -> tuple[list[Prompt], SamplingParams, "CompletionReply"]:
    """The checked prompts, how their answers are drawn, and what puts them into words."""
    prompts = read_prompts(body, state)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    for prompt in prompts:
        check_length(len(prompt.ids), max_tokens, state.max_model_len, "prompt")
    prompt_logprobs = body.logprobs if body.echo else None
    # Answers are compared by the probabilities of their tokens, shown or not.
    logprobs = 0 if body.logprobs is None and body.n_drawn > body.n else body.logprobs
    params = sampling_params(body, state, max_tokens, logprobs, prompt_logprobs)
    return prompts, params, CompletionReply(body, prompts, state)


def read_prompts(body: CompletionRequest, state: ServerState) -> list[Prompt]:
    """The prompts in one form, whichever of the four they came in."""
    given = body.prompt
    if isinstance(given, str):
        given = [given]
    elif not given:
        raise BadRequestError("prompt: the list is empty", param="prompt")
    elif isinstance(given[0], int):
        given = [given]  # a list of token ids is one prompt
    check_count(len(given), body.n_drawn, state.engine, "prompt")
    for item in given:
        if isinstance(item, str):
            check_size(len(item), state.max_model_len, "prompt")
        elif isinstance(item, list):
            check_ids(item, state.tokenizer.vocab_size, "prompt")

    def read(item: Any) -> Prompt:
        if not isinstance(item, str):
            return Prompt(item)
        ids = state.tokenizer.encode(item, add_bos=body.add_special_tokens, parse_special=True)
        return Prompt(ids, item)

    return [read(item) for item in given]


class CompletionReply(Reply[LegacyLogprobs]):
    """Prompt text first when it is to be echoed, then the answer's."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    event_object = "text_completion"

    def __init__(
        self, body: CompletionRequest, prompts: Sequence[Prompt], state: ServerState
    ) -> None:
        super().__init__(body, [prompt.ids for prompt in prompts], state, continues=True)
        self._token_size *= 1 + (body.logprobs or 0)
        self._shows_prompt |= body.echo
        self._body = body
        self._prompts = prompts
        self._tokenizer = state.tokenizer
        self._names = TokenNames(state.tokenizer)
        self._offsets = [0 for _ in self.answers]
        self._scores = [0.0 for _ in self.answers]  # sums of log-probabilities

    def express(self, answer: Answer, piece: Piece) -> tuple[str, LegacyLogprobs | None]:
        """Text with the echoed prompt before the first token's."""
        logprobs = None if self._body.logprobs is None else LegacyLogprobs()
        echo = ""
        if self._body.echo and len(answer.token_ids) <= 1:
            echo = self._echo(answer, piece, logprobs)
            self._offsets[answer.index] = len(echo)
        sampled = piece.output.sampled
        if sampled is not None:
            self._scores[answer.index] += sampled.logprob
        if logprobs is not None and sampled is not None:
            logprobs.add(self._names, sampled.token, sampled, self._offsets[answer.index])
        self._offsets[answer.index] += len(piece.text)
        return echo + piece.text, logprobs

    def chosen(self) -> list[Answer]:
        """Of each prompt's answers those that are likeliest per token, the likeliest first."""
        n, n_drawn = self._body.n, self._body.n_drawn
        if n_drawn == n:
            return self.answers
        best: list[Answer] = []
        for first in range(0, len(self.answers), n_drawn):
            drawn = self.answers[first : first + n_drawn]
            best += sorted(drawn, key=self._surprise)[:n]
        return best

    def _surprise(self, answer: Answer) -> float:
        return -self._scores[answer.index] / max(1, len(answer.token_ids))

    def whole_choice(self, answer: Answer, text: str) -> dict[str, Any]:
        """The text."""
        return {"text": text}

    def event_choice(self, answer: Answer, text: str) -> str:
        """The text."""
        return f'"text":{dumps_text(text)}'

    def _echo(self, answer: Answer, piece: Piece, logprobs: LegacyLogprobs | None) -> str:
        prompt = self._prompts[answer.index // self._body.n_drawn]
        skip = self._body.skip_special_tokens
        text = prompt.text
        if text is None:
            text = self._tokenizer.decode(prompt.ids, skip_special=skip)
        if logprobs is not None:
            decoder = StreamDecoder(self._tokenizer, skip_special=skip)
            offset = 0
            scores = [None, *piece.output.prompt_scores]
            for token, score in zip(prompt.ids, scores, strict=True):
                logprobs.add(self._names, token, score, min(offset, len(text)))
                offset += len(decoder.push(token))
        return text
