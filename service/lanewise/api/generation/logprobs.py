"""Log-probabilities in the two forms that OpenAI's endpoints give them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lanewise.engine.base.stream import Sampled
from lanewise.text.detokenizer import StreamDecoder
from lanewise.text.tokenizer import Tokenizer

# JSON has no minus infinity; OpenAI writes this for a token that cannot come.
LOWEST_LOGPROB = -9999.0


class TokenNames:
    """Tokens as they are written in log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, tokens: Sequence[int], *, special: bool) -> str:
        """The text of some tokens, with control tokens or without."""
        return self._tokenizer.decode(tokens, skip_special=not special)

    def offsets(self, tokens: Iterable[int], *, special: bool) -> Iterator[int]:
        """Where in that text each of them begins."""
        decoder = StreamDecoder(self._tokenizer, skip_special=not special)
        offset = 0
        for token in tokens:
            yield offset
            offset += len(decoder.push(token))

    def raw(self, token: int) -> bytes:
        """The token's bytes; rows that pad the vocabulary have none."""
        return self._tokenizer.token_bytes(token) if token < self._tokenizer.vocab_size else b""

    def name(self, token: int) -> str:
        """The token as text; bytes that are no text by themselves are spelled out."""
        raw = self.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


@dataclass(slots=True)
class LegacyLogprobs:
    """The parallel lists of the completions API."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, names: TokenNames, token: int, sampled: Sampled | None, offset: int) -> None:
        """Append one token; the first of a prompt has no probability."""
        self.tokens.append(names.name(token))
        self.text_offset.append(offset)
        if sampled is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        self.token_logprobs.append(finite(sampled.logprob))
        top: dict[str, float] = {}
        # Two tokens may have one name; the likelier one, which comes first, keeps it.
        for other, logprob in [*sampled.top, (token, sampled.logprob)]:
            top.setdefault(names.name(other), finite(logprob))
        self.top_logprobs.append(top)

    def to_json(self) -> dict[str, Any]:
        """The object of the answer."""
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }


@dataclass(slots=True)
class ChatLogprobs:
    """The list of objects of the chat API."""

    content: list[dict[str, Any]] = field(default_factory=list)

    def add(self, names: TokenNames, sampled: Sampled) -> None:
        """Append one token with its alternatives."""
        top = [self.entry(names, token, logprob) for token, logprob in sampled.top]
        entry = self.entry(names, sampled.token, sampled.logprob)
        self.content.append(entry | {"top_logprobs": top})

    def to_json(self) -> dict[str, Any]:
        """The object of the answer."""
        return {"content": self.content, "refusal": None}

    @staticmethod
    def entry(names: TokenNames, token: int, logprob: float) -> dict[str, Any]:
        """A token without alternatives."""
        raw = names.raw(token)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": finite(logprob),
            "bytes": list(raw),
        }


def prompt_scores(
    names: TokenNames, ids: Sequence[int], scores: Sequence[Sampled], most: int
) -> list[dict[str, dict[str, Any]] | None]:
    """Each token of a prompt with ``most`` alternatives, by their ids; the first has no score.

    The rank is that among all tokens, and null where it is beyond the alternatives.
    """
    made: list[dict[str, dict[str, Any]] | None] = [None]
    for token, score in zip(ids[1:], scores, strict=True):
        top = list(score.top[:most])
        ranks = {other: rank for rank, (other, _) in enumerate(score.top, 1)}
        found = {token: score.logprob, **dict(top)}
        made.append(
            {
                str(one): {
                    "logprob": finite(logprob),
                    "rank": ranks.get(one),
                    "decoded_token": names.raw(one).decode("utf-8", "replace"),
                }
                for one, logprob in found.items()
            }
        )
    return made
