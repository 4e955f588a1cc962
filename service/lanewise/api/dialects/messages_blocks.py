"""Blocks of messages in Anthropic's form, and what each of them says to a model."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, field_validator, model_validator

from lanewise.api.schemas import FirstProblemOnly, Strict, by_type

NOT_READ = ("image", "container_upload")
NO_TEXT = "this server reads text only"
# What blocks of each type need.
NEEDED = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
}


class TextBlock(Strict):
    """Some text."""

    type: Literal["text"]
    text: str


class ForeignBlock(Strict):
    """What a tool of another server's was asked or gave, or something that we do not know."""

    type: str

    @field_validator("type")
    @classmethod
    def _refuse_what_is_no_text(cls, kind: str) -> str:
        if kind in NOT_READ:
            raise ValueError(NO_TEXT)
        return kind

    @property
    def text(self) -> str:
        """Nothing."""
        return ""


class Source(Strict):
    """Where a document is: here."""

    type: Literal["text", "content"]
    data: str = Field("", description="Of text.")
    content: str | Annotated[list[TextBlock], FirstProblemOnly()] = Field(
        "", description="Of content."
    )

    @field_validator("type", mode="before")
    @classmethod
    def _refuse_what_is_no_text(cls, kind: Any) -> Any:
        if kind not in ("text", "content"):
            raise ValueError(NO_TEXT)
        return kind


class DocumentBlock(Strict):
    """A document."""

    type: Literal["document"]
    source: Source
    title: str = ""
    context: str = ""

    @property
    def text(self) -> str:
        """Its title, what is said of it, and all of it."""
        head = f"Document {self.title}:" if self.title else "Document:"
        said = self.source.data or joined(self.source.content)
        return "\n".join(filter(None, (head, self.context, said)))


class SearchResultBlock(Strict):
    """What a search found."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], FirstProblemOnly()]

    @property
    def text(self) -> str:
        """What it is called, where it is and what it says."""
        return f"Search result {self.title} ({self.source}):\n{joined(self.content)}"


class ToolReferenceBlock(Strict):
    """A tool that a search for tools has found."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        """Its name."""
        return f"Tool {self.tool_name}"


AnyText = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[DocumentBlock, Tag("[document]")]
    | Annotated[SearchResultBlock, Tag("[search_result]")]
    | Annotated[ToolReferenceBlock, Tag("[tool_reference]")]
    | Annotated[ForeignBlock, Tag("[foreign]")],
    by_type(lambda _: "text", ("text", "document", "search_result", "tool_reference")),
]
Texts = str | Annotated[list[AnyText], FirstProblemOnly()]


class ImageSource(Strict):
    """An image, as base64 or where it is."""

    type: Literal["base64", "url"]
    media_type: str = Field("", description="Of base64; what the data is counts.")
    data: str = Field("", description="Of base64.")
    url: str = Field("", description="Of url.")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        name = "data" if self.type == "base64" else "url"
        if name not in self.model_fields_set:
            raise ValueError(f"{self.type} needs {name}")
        return self


class ImageBlock(Strict):
    """An image."""

    type: Literal["image"]
    source: ImageSource

    @property
    def text(self) -> str:
        """Nothing."""
        return ""

    @property
    def url(self) -> str:
        """Where it is, or its data."""
        source = self.source
        return source.url if source.type == "url" else f"data:;base64,{source.data}"


Results = (
    str
    | Annotated[
        list[
            Annotated[
                Annotated[ImageBlock, Tag("[image]")] | Annotated[AnyText, Tag("[foreign]")],
                by_type(lambda _: "text", ("image",)),
            ]
        ],
        FirstProblemOnly(),
    ]
)


def joined(texts: Any) -> str:
    """Blocks as one text, each on a line of its own."""
    return texts if isinstance(texts, str) else "\n".join(block.text for block in texts)


class Block(Strict):
    """A part of a message; what it has depends on its type."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str = Field(default="", description="Of text.")
    id: str = Field(default="", description="Of tool_use.")
    name: str = Field(default="", description="Of tool_use.")
    input: dict[str, Any] = Field(default_factory=dict, description="Of tool_use.")
    tool_use_id: str = Field(
        default="", description="Of tool_result: the tool_use that it answers."
    )
    content: Results = Field(default="", description="Of tool_result.")
    is_error: bool = Field(default=False, description="Of tool_result.")
    thinking: str = Field(default="", description="Of thinking; templates keep or drop it.")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        for name in NEEDED[self.type]:
            if name not in self.model_fields_set:
                raise ValueError(f"{self.type} needs {name}")
        return self


AnyBlock = Annotated[
    Annotated[Block, Tag("[text]")]
    | Annotated[Block, Tag("[tool_use]")]
    | Annotated[Block, Tag("[tool_result]")]
    | Annotated[Block, Tag("[thinking]")]
    | Annotated[Block, Tag("[redacted_thinking]")]
    | Annotated[DocumentBlock, Tag("[document]")]
    | Annotated[SearchResultBlock, Tag("[search_result]")]
    | Annotated[ImageBlock, Tag("[image]")]
    | Annotated[ForeignBlock, Tag("[foreign]")],
    by_type(lambda _: "text", (*NEEDED, "document", "search_result", "image")),
]
