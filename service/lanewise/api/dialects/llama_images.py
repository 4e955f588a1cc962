"""Images of ``/completion``: in a prompt that is an object, or beside one that is a text."""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from lanewise.api.conversations import ImagePart
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import Illustrated
from lanewise.api.schemas import FirstProblemOnly, Strict

MEDIA = "<__media__>"
NUMBERED = re.compile(r"\[img-(\d{1,10})\]")


class PromptObject(Strict):
    """A prompt, perhaps with images."""

    prompt_string: str
    multimodal_data: Annotated[list[str], FirstProblemOnly()] = Field(
        default_factory=list,
        description="Images in base64, in the order of `<__media__>` in the prompt.",
    )


class NumberedImage(Strict):
    """An image, as older clients send it."""

    data: str = Field(description="The image in base64.")
    id: int = Field(ge=0, lt=10**10, description="It stands where the prompt has `[img-ID]`.")


def in_prompt(item: PromptObject, param: str) -> str | Illustrated:
    """A prompt with images where its marks are; BadRequestError unless there are as many."""
    data = item.multimodal_data
    if not data:
        return item.prompt_string
    n_marks = item.prompt_string.count(MEDIA)
    if n_marks != len(data):
        raise BadRequestError(
            f"{param}.multimodal_data: {len(data)} images for {n_marks} of {MEDIA} in"
            " prompt_string; accepted: as many",
            param=f"{param}.multimodal_data",
        )
    images = [_part(one, f"{param}.multimodal_data[{i}]") for i, one in enumerate(data)]
    return Illustrated(text=item.prompt_string, mark=MEDIA, images=images)


def beside_prompt(prompt: str, images: Sequence[NumberedImage]) -> Illustrated:
    """A prompt with images by their numbers; none may be unused or missing: BadRequestError."""
    if MEDIA in prompt:
        raise _refused("image_data", f"beside {MEDIA} in prompt", "[img-ID] in prompt")
    parts: dict[int, ImagePart] = {}
    for i, image in enumerate(images):
        if image.id in parts:
            raise _refused(f"image_data[{i}].id", f"{image.id} a second time", "one of each")
        parts[image.id] = _part(image.data, f"image_data[{i}].data")
    named = [int(found[1]) for found in NUMBERED.finditer(prompt)]
    for number in named:
        if number not in parts:
            raise _refused("prompt", f"[img-{number}] is no image", "ids of image_data")
    for i, number in enumerate(parts):
        if number not in named:
            accepted = f"[img-{number}] where the image stands in prompt"
            raise _refused(f"image_data[{i}]", "used nowhere", accepted)
    return Illustrated(
        text=NUMBERED.sub(MEDIA, prompt), mark=MEDIA, images=[parts[number] for number in named]
    )


def _part(data: str, place: str) -> ImagePart:
    return ImagePart(type="image_url", image_url=f"data:;base64,{data}", place=place)


def _refused(param: str, what: str, accepted: str) -> BadRequestError:
    return BadRequestError(f"{param}: {what}; accepted: {accepted}", param=param)
