"""What answers of OpenAI's completion endpoints have in common, streamed or whole."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lanewise.api.errors import ApiError
from lanewise.api.generation.dialect import About
from lanewise.api.generation.events import Choice, End, Piece, Progress
from lanewise.api.generation.logprobs import prompt_scores
from lanewise.api.generation.writing import dumps, dumps_long

DONE = "data: [DONE]\n\n"


class OpenAiWire(ABC):
    """One object, or chunks that each hold a part of one choice."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, about: About) -> None:
        self.about = about
        self._delivery = about.ask.delivery
        self.shows_ids = about.ask.shown.token_ids
        # All of a chunk that stays the same, written once.
        self._head = f"data: {dumps(self._base(self.chunk_object))[:-1]},"

    @abstractmethod
    def whole_choice(self, choice: Choice) -> dict[str, Any]:
        """What a whole choice says."""

    @abstractmethod
    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """The log-probabilities of a whole choice, if they are wanted."""

    def first(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def progress(self, progress: Progress) -> str:
        """How much of the prompt is read."""
        return f'{self._head}"choices":[],"prompt_progress":{dumps(progress.to_json())}}}\n\n'

    def last(self) -> Iterator[str]:
        """Receipts and the usage, if they are asked for, and the word that ends a stream."""
        if self.about.receipts is not None:
            made = dumps_long(self.about.receipts.made())
            yield f'{self._head}"choices":[],"receipts":{made}}}\n\n'
        if self._delivery.usage:
            yield f'{self._head}"choices":[],"usage":{dumps(self.usage())}}}\n\n'
        yield DONE

    def failed(self, error: ApiError) -> Iterator[str]:
        """An error object as an event."""
        yield f"data: {dumps(error.body())}\n\n"
        yield DONE

    def whole(self, choices: Sequence[Choice]) -> Iterator[str]:
        """All choices in one object."""
        yield dumps(self._base(self.whole_object))[:-1]
        written = (dumps_long(self._choice(*one)) for one in enumerate(choices))
        yield f',"choices":[{",".join(written)}],"usage":{dumps(self.usage())}'
        more = self.more(choices)
        yield f",{dumps_long(more)[1:]}" if more else "}"

    def more(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """What else a whole answer says: the receipts of its choices."""
        if self.about.receipts is None:
            return {}
        made = self.about.receipts.made()
        return {"receipts": [made[choice.index] for choice in choices]}

    def prompt_scores(self, choice: Choice) -> dict[str, Any]:
        """The log-probabilities of a choice's prompt, as vLLM gives them, if they are asked for."""
        most = self.about.ask.shown.prompt_scores
        if most is None:
            return {}
        ids = self.about.prompt_of(choice.index).ids
        written = prompt_scores(self.about.names, ids, choice.prompt_scores, most)
        return {"prompt_logprobs": written}

    def usage(self) -> dict[str, Any]:
        """The numbers of tokens."""
        usage = self.about.usage
        shown: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                **({"image_tokens": usage.image_tokens} if usage.image_tokens else {}),
            },
        }
        details = {}
        if usage.thinking_tokens is not None:
            details["reasoning_tokens"] = usage.thinking_tokens
        if usage.expected_tokens is not None:
            n_accepted = usage.accepted_tokens
            details["accepted_prediction_tokens"] = n_accepted
            details["rejected_prediction_tokens"] = usage.expected_tokens - n_accepted
        return shown | ({"completion_tokens_details": details} if details else {})

    def chunk(self, index: int, content: str, end: End | None = None, token: int = -1) -> str:
        """An event with a part of one choice, which is given as members of an object."""
        shown = "null"
        if end is not None:
            shown = f'"{end.reason}","stop_reason":{dumps(self.stop_reason(end, token))}'
        choice = f'{{"index":{index},{content},"finish_reason":{shown}}}'
        usage = ""
        if self._delivery.running_usage:
            usage = f',"usage":{dumps(self.usage())}'
        elif self._delivery.usage:
            usage = ',"usage":null'
        return f'{self._head}"choices":[{choice}]{usage}}}\n\n'

    def stop_reason(self, end: End | None, token: int) -> str | int | None:
        """Which stop string or token an answer ended with, as vLLM tells it."""
        if end is None or end.reason == "length" or end.stop is not None:
            return None if end is None else end.stop
        return token if token in self.about.ask.ending.token_ids else None

    def says_nothing(self, piece: Piece) -> bool:
        """Whether no chunk is needed for a piece: it has no events, and no more was asked for."""
        if piece.events:  # most have some
            return False
        shown = self.about.ask.shown
        asked = shown.logprobs is not None or shown.token_ids or self._delivery.running_usage
        return not (asked or (piece.is_first and shown.echo))

    def ids_of(self, piece: Piece) -> str:
        """Members with the token of a piece, and those of the prompt before the first."""
        if not self.shows_ids:
            return ""
        text = f',"token_ids":{dumps([] if piece.token is None else [piece.token.token])}'
        if piece.is_first:
            text += f',"prompt_token_ids":{dumps_long(self.about.prompt_of(piece.choice).ids)}'
        return text

    def _base(self, name: str) -> dict[str, Any]:
        return {
            "id": self.id_prefix + self.about.id,
            "object": name,
            "created": self.about.created,
            "model": self.about.model,
            "system_fingerprint": self.about.fingerprint,
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        shown = {
            "index": index,
            **self.whole_choice(choice),
            "logprobs": self.logprobs(choice),
            "finish_reason": None if choice.end is None else choice.end.reason,
            "stop_reason": self.stop_reason(choice.end, choice.last_token),
        }
        if self.shows_ids:
            shown["prompt_token_ids"] = self.about.prompt_of(choice.index).ids
            shown["token_ids"] = choice.token_ids
        return shown
