"""The answer to one HTTP request: in one piece, or as one event for each token."""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

from lanewise.api.generation import Answer, Piece
from lanewise.api.logprobs import Logprobs
from lanewise.api.schemas import GenerationFields
from lanewise.api.state import ServerState
from lanewise.engine.stream import RequestStream, TokenOutput
from lanewise.text.detokenizer import StopStrings

L = TypeVar("L", bound=Logprobs)

dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
# The same for a string, without looking what it is.
dumps_text = json.encoder.encode_basestring

# Items that are written at a time: the interpreter is free between two such pieces.
NUMBERS_AT_ONCE = 4096
OBJECTS_AT_ONCE = 64
# A token's part of the work on an answer, in the characters that take as long to tokenize.
TOKEN_SIZE = 16


def dumps_long(value: Any) -> str:
    """As ``dumps``, which keeps the interpreter until a list of a million numbers is written."""
    if isinstance(value, dict):
        members = (f"{dumps_text(key)}:{dumps_long(item)}" for key, item in value.items())
        return "{" + ",".join(members) + "}"
    if not isinstance(value, list) or not value:
        return dumps(value)
    count = OBJECTS_AT_ONCE if isinstance(value[-1], dict | list) else NUMBERS_AT_ONCE
    starts = range(0, len(value), count)
    return "[" + ",".join(dumps(value[at : at + count])[1:-1] for at in starts) + "]"


class Reply(ABC, Generic[L]):
    """Puts the engine's outputs into the words of one endpoint."""

    id_prefix: str
    whole_object: str
    event_object: str

    def __init__(
        self,
        fields: GenerationFields,
        prompts: Sequence[Sequence[int]],
        state: ServerState,
        *,
        continues: bool,
        shown: Collection[int] = (),
        marked: bool = False,
    ) -> None:
        self._fields = fields
        self._state = state
        self._n_drawn = fields.n_drawn
        self._with_ids = fields.return_token_ids
        self._shows_prompt = fields.return_token_ids  # with the first token
        self._token_size = TOKEN_SIZE  # more where each comes with alternatives
        self._size = 0  # of all that was taken
        self._text_ends: list[int] = []  # sequences whose text ends before they do
        stops = StopStrings(fields.stops)
        self.answers = [
            Answer(
                index,
                prompts[index // self._n_drawn],
                fields,
                state.tokenizer,
                stops,
                continues=continues,
                shown=shown,
                marked=marked,
            )
            for index in range(len(prompts) * self._n_drawn)
        ]
        self._texts: list[list[str]] = [[] for _ in self.answers]
        self._logprobs: list[L | None] = [None for _ in self.answers]
        self._n_prompt = sum(map(len, prompts))
        self._n_output = 0
        self._cached = [0 for _ in prompts]  # tokens of each, for its first answer
        options = fields.stream_options
        self._with_usage = options is not None and options.include_usage
        self._running_usage = options is not None and options.continuous_usage_stats
        self._id = self.id_prefix + secrets.token_hex(12)
        self._created = int(time.time())
        # All of an event that stays the same, written once.
        self._head = f"data: {dumps(self._base(self.event_object))[:-1]},"

    @property
    def streams(self) -> bool:
        """Whether the answer is wanted as events."""
        return self._fields.stream

    @abstractmethod
    def express(self, answer: Answer, piece: Piece) -> tuple[str, L | None]:
        """The text and the log-probabilities that a piece adds."""

    @abstractmethod
    def whole_choice(self, answer: Answer, text: str) -> dict[str, Any]:
        """The part of a whole choice that holds its text."""

    @abstractmethod
    def event_choice(self, answer: Answer, text: str) -> str:
        """The part of an event's choice that holds its text, as JSON without braces."""

    def shown_reason(self, answer: Answer) -> str | None:
        """Why the answer has ended, if it has."""
        return answer.finish_reason

    def chosen(self) -> Sequence[Answer]:
        """The answers that are given, in order."""
        return self.answers

    def measure(self, outputs: Sequence[TokenOutput]) -> int:
        """How much work outputs are, as ``off_loop`` measures it."""
        count = len(outputs)
        for output in outputs:
            count += len(output.prompt_scores)
        size = count * self._token_size
        if self._shows_prompt:
            answers = [self.answers[output.index] for output in outputs]
            size += sum(len(answer.prompt) for answer in answers if not answer.token_ids)
        self._size += size
        return size

    @property
    def whole_size(self) -> int:
        """How much work the answer in one piece is."""
        return self._size

    def end_texts(self, stream: RequestStream) -> None:
        """Stop the sequences whose text has ended; on the event loop, as all that a stream does."""
        for index in self._text_ends:
            stream.stop(index)
        self._text_ends.clear()

    def add(self, outputs: Sequence[TokenOutput]) -> None:
        """Take outputs for the answer in one piece."""
        for answer, piece in self._pieces(outputs):
            text, logprobs = self.express(answer, piece)
            self._texts[answer.index].append(text)
            so_far = self._logprobs[answer.index]
            if so_far is not None and logprobs is not None:
                so_far.extend(logprobs)
            else:
                self._logprobs[answer.index] = logprobs

    def whole(self) -> bytes:
        """The answer in one piece."""
        base = dumps(self._base(self.whole_object))[:-1]
        choices = (dumps_long(self._choice(*one)) for one in enumerate(self.chosen()))
        return f'{base},"choices":[{",".join(choices)}],"usage":{dumps(self.totals())}}}'.encode()

    def first_events(self) -> Iterator[str]:
        """What comes before the first token."""
        yield from ()

    def events(self, outputs: Sequence[TokenOutput]) -> Iterator[str]:
        """One event for each token."""
        for answer, piece in self._pieces(outputs):
            text, logprobs = self.express(answer, piece)
            shown = "null" if logprobs is None else dumps_long(logprobs.to_json())
            ids = self._ids(answer, piece) if self._with_ids else ""
            choice = f'{self.event_choice(answer, text)},"logprobs":{shown}{ids}'
            yield self.event(answer.index, choice, self.shown_reason(answer))

    def event(self, index: int, content: str, finish_reason: str | None) -> str:
        """One event with one choice."""
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        choice = f'{{"index":{index},{content},"finish_reason":{reason}}}'
        return f'{self._head}"choices":[{choice}]{self._usage()}}}\n\n'

    def last_events(self) -> Iterator[str]:
        """The usage, for those who asked."""
        if self._with_usage:
            totals = dumps(self.totals())
            yield f'{self._head}"choices":[],"usage":{totals}}}\n\n'

    def _pieces(self, outputs: Sequence[TokenOutput]) -> Iterator[tuple[Answer, Piece]]:
        for output in outputs:
            answer = self.answers[output.index]
            if answer.finish_reason is not None:
                continue  # drawn while its text had already come to a stop string
            self._n_output += output.sampled is not None
            prompt, choice = divmod(output.index, self._n_drawn)
            if choice == 0:
                self._cached[prompt] = output.cached_tokens
            piece = answer.push(output)
            if piece.finish_reason is not None and output.finish_reason is None:
                self._text_ends.append(output.index)
            yield answer, piece

    def _base(self, name: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": name,
            "created": self._created,
            "model": self._fields.model or self._state.model_name,
            "system_fingerprint": self._state.fingerprint,
        }

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        logprobs = self._logprobs[answer.index]
        choice: dict[str, Any] = {
            "index": index,
            **self.whole_choice(answer, "".join(self._texts[answer.index])),
            "logprobs": None if logprobs is None else logprobs.to_json(),
            "finish_reason": self.shown_reason(answer),
        }
        if self._with_ids:
            choice["prompt_token_ids"] = list(answer.prompt)
            choice["token_ids"] = answer.token_ids
        return choice

    def _ids(self, answer: Answer, piece: Piece) -> str:
        sampled = piece.output.sampled
        text = f',"token_ids":{dumps([] if sampled is None else [sampled.token])}'
        if len(answer.token_ids) <= 1:
            text += f',"prompt_token_ids":{dumps_long(list(answer.prompt))}'
        return text

    def totals(self) -> dict[str, Any]:
        """OpenAI's token counts."""
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": self._n_output,
            "total_tokens": self._n_prompt + self._n_output,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached)},
        }

    def _usage(self) -> str:
        if self._running_usage:
            return f',"usage":{dumps(self.totals())}'
        return ',"usage":null' if self._with_usage else ""
