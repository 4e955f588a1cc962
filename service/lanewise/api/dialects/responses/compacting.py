"""``/v1/responses/compact``: a conversation as its user's words and a summary of the rest."""

from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field

from lanewise.api.dialects.responses.foreign import JsonItem, compacted
from lanewise.api.dialects.responses.schema import InputItem, ResponsesRequest
from lanewise.api.dialects.responses.wire import usage_of
from lanewise.api.errors import ApiError
from lanewise.api.generation.dialect import About
from lanewise.api.generation.events import Choice, Piece
from lanewise.api.generation.writing import dumps_long

REQUEST = (
    "Summarize this conversation for whoever goes on with it: what was asked, what was decided and"
    " found out, names and numbers that matter, and what is still to be done. Write only that."
)


class CompactRequest(ResponsesRequest):
    """Body of ``POST /v1/responses/compact``: of what goes on, and nothing of how."""

    input: str | list[InputItem] = Field(default_factory=list)


class CompactWire:
    """One object; it is never streamed."""

    def __init__(self, about: About, items: Sequence[JsonItem]) -> None:
        self._about = about
        self._items = items

    def first(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def piece(self, piece: Piece) -> Iterable[str]:
        """Nothing."""
        return ()

    def last(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def failed(self, error: ApiError) -> Iterable[str]:
        """Nothing."""
        return ()

    def whole(self, choices: Sequence[Choice]) -> Iterator[str]:
        """What the user said, and the summary."""
        about = self._about
        said = [item for item in self._items if item.get("role") == "user"]
        summary = {"id": f"cmp_{about.id}", **compacted(choices[0].text)}
        named = [{"id": f"msg_{about.id}{i:04x}", **item} for i, item in enumerate(said)]
        yield dumps_long(
            {
                "id": f"resp_{about.id}",
                "object": "response.compaction",
                "created_at": about.created,
                "output": [*named, summary],
                "usage": usage_of(about.usage),
            }
        )
