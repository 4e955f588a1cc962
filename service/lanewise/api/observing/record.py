"""What is told of a request when it is over: in the access log, and in traces where asked for."""

from dataclasses import dataclass, field
from typing import Any

from lanewise.api.generation.ask import Ask
from lanewise.api.generation.events import End, Piece, Usage


@dataclass(slots=True)
class Record:
    """A request that generates."""

    operation: str  # the dialect's name
    model: str
    ask: Ask
    usage: Usage  # grows
    reasons: list[str] = field(default_factory=list)  # why its answers ended, in that order

    def note(self, piece: Piece) -> None:
        """Remember whether an answer has ended."""
        if piece.events and isinstance(end := piece.events[-1], End):
            self.reasons.append(end.reason)

    def __str__(self) -> str:
        """A few words for a line of text."""
        fields = self.fields()
        text = f"{self.model} {self.usage.prompt_tokens}+{self.usage.completion_tokens} tokens"
        if "first_token_s" in fields:
            text += f", first after {fields['first_token_s']:.3f} s"
        return text

    def fields(self) -> dict[str, Any]:
        """Names and values for a log; seconds since the request was accepted."""
        made: dict[str, Any] = {
            "model": self.model,
            "stream": self.ask.delivery.stream,
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            **({"image_tokens": self.usage.image_tokens} if self.usage.image_tokens else {}),
            "completion_tokens": self.usage.completion_tokens,
            "finish_reasons": self.reasons,
        }
        moments = self.usage.times.moments
        if moments is not None and moments.started is not None:
            made["queue_s"] = round(moments.started - moments.arrived, 6)
        if moments is not None and moments.first_token is not None:
            made["first_token_s"] = round(moments.first_token - moments.arrived, 6)
        return made
