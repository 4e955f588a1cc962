"""``/infill``: what is missing between two texts, in the words of llama.cpp's server."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from lanewise.api.dialects import llama_completion
from lanewise.api.dialects.llama_completion import LlamaCompletionRequest, LlamaCompletionWire
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import Ask, Infill, Prompts
from lanewise.api.generation.dialect import Dialect
from lanewise.api.schemas import FirstProblemOnly, Strict


class OtherFile(Strict):
    """A file of the same project, or a part of it."""

    text: str
    filename: str = "tmp"


class LlamaInfillRequest(LlamaCompletionRequest):
    """Body of ``POST /infill``: as that of /completion, with two texts around a gap."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[OtherFile], FirstProblemOnly()] = Field(
        default_factory=list, description="The end of all of them is used, as far as it fits."
    )
    prompt: str = Field("", description="What is before the gap, behind input_prefix.")


def ask(body: LlamaInfillRequest) -> Ask:
    """What a request asks for."""
    if body.image_data:
        message = "image_data: not around a gap; accepted: none"
        raise BadRequestError(message, param="image_data")
    gap = Infill(
        prefix=body.input_prefix + body.prompt,
        suffix=body.input_suffix,
        others=[(other.filename, other.text) for other in body.input_extra],
        param="input_prefix",
        suffix_param="input_suffix",
    )
    return replace(llama_completion.ask(body), input=Prompts(items=[gap], param="input_prefix"))


LLAMA_INFILL = Dialect(
    name="llama_infill",
    summary="Fill a gap in a text, in llama.cpp's words",
    body=LlamaInfillRequest,
    ask=ask,
    wire=LlamaCompletionWire,
    progress=LlamaCompletionWire.progress,
    errors=llama_completion.ERRORS,
)
