"""Images of requests for a model that sees: from what clients send to what the engine gets."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lanewise.api.conversations import ImagePart, Message
from lanewise.api.errors import BadRequestError, UnavailableError
from lanewise.api.observing.caller import Caller
from lanewise.api.shared.budgets import RETRY_AFTER_S
from lanewise.api.shared.image_data import DATA, bytes_of_url
from lanewise.api.shared.image_fetch import Fetcher
from lanewise.api.shared.workers import Workers
from lanewise.engine.base.picture import Picture, Span
from lanewise.sandbox.images import ImageService, ReadImage, Seen
from lanewise.sandbox.lane import SandboxError
from lanewise.text.images.layouts import ImageError

TEXT_ONLY = "this model reads text only"
# What of a part says where the image is; its type is what a model without a tower cannot read.
SOURCE = re.compile(r"\.(image_url(\.url)?|source)$")
SEEING = ("user", "tool", "function")  # roles
COPIES = 3  # of an image's bytes, on their way from base64 to the sandbox
Images = Mapping[int, ReadImage]  # by the identity of the part of a message that brought it
NO_IMAGES: Images = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Eyes:
    """What a model that sees needs of the server."""

    service: ImageService
    written_as: str  # by the chat template, for an image
    placeholder: int  # the token that rows stand for
    max_images: int
    max_bytes: int  # of an image as it is sent
    fetcher: Fetcher | None = None  # None: images are in requests alone

    async def read(
        self,
        messages: Sequence[Message],
        param: str,
        caller: Caller,
        workers: Workers,
        *,
        wants_pixels: bool,
    ) -> Images:
        """The images of a conversation; BadRequestError names the place of the one at fault."""
        for i, message in enumerate(messages):
            if message.images and message.role not in SEEING:
                raise BadRequestError(
                    f"{param}[{i}].content: images of role {message.role}; accepted: of user,"
                    " and in results of tools",
                    param=f"{param}[{i}].content",
                )
        parts = placed(messages, param)
        return await self.read_parts(parts, param, caller, workers, wants_pixels=wants_pixels)

    async def read_parts(
        self,
        parts: Sequence[tuple[str, ImagePart]],
        param: str,
        caller: Caller,
        workers: Workers,
        *,
        wants_pixels: bool,
    ) -> Images:
        """The same of parts, each with what its client calls it."""
        if len(parts) > self.max_images:
            raise BadRequestError(
                f"{param}: {len(parts)} images are too many; accepted: at most {self.max_images}"
                " (max_images)",
                param=param,
            )
        found: dict[int, ReadImage] = {}
        for place, part in parts:
            found[id(part)] = await self._read(place, part, caller, workers, wants_pixels)
        return found

    async def _read(
        self, place: str, part: ImagePart, caller: Caller, workers: Workers, wants_pixels: bool
    ) -> ReadImage:
        try:
            most = max(len(part.url), self.max_bytes if self.fetcher else 0)
            with caller.hold.passing(COPIES * most):
                data = await self._bytes_of(part.url, workers)
                image = await self.service.read(
                    data, part.detail, caller.client, wants_pixels=wants_pixels
                )
            caller.hold.keep(sum(len(view.pixels) for view in image.views))
        except ImageError as error:
            raise BadRequestError(f"{place}: {error}", param=place, code=error.code) from None
        except SandboxError as error:
            headers = {"retry-after": str(RETRY_AFTER_S)}
            raise UnavailableError(f"{place}: {error}", param=place, headers=headers) from None
        for note in image.notes:
            caller.tell(f"{place}: {note}")
        return image

    async def _bytes_of(self, url: str, workers: Workers) -> bytes:
        if url[: len(DATA)].lower() == DATA:
            return await workers.read(len(url), lambda: bytes_of_url(url, self.max_bytes))
        if self.fetcher is None:
            raise ImageError(
                "invalid_image_url", "accepted: data: URLs; this server fetches no images"
            )
        return await self.fetcher.fetch(url, self.max_bytes)

    def spans(self, ids: list[int], images: Sequence[ReadImage]) -> tuple[list[int], list[Span]]:
        """A prompt with a run of placeholders for each line of a view, and where these are.

        ``ids`` has one for each line. ValueError if there are more or fewer.
        """
        lines = _lines([view for image in images for view in image.views])
        longer: list[int] = []
        spans: list[Span] = []
        for token in ids:
            if token != self.placeholder:
                longer.append(token)
                continue
            picture, row, n_tokens = next(lines, (None, 0, 0))
            if picture is None:
                raise ValueError("more placeholders than lines of images")
            spans.append(Span(len(longer), picture, row, n_tokens))
            longer += [token] * n_tokens
        if next(lines, None) is not None:
            raise ValueError("fewer placeholders than lines of images")
        return longer, spans


def _lines(views: Sequence[Seen]) -> Iterator[tuple[Picture, int, int]]:
    """The lines of views: of which picture, from which row on, and how many."""
    for view in views:
        picture = Picture(view.digest, view.width, view.height, view.n_tokens, view.pixels)
        length = view.n_tokens // view.lines
        for line in range(view.lines):
            yield picture, line * length, length


def placed(messages: Sequence[Message], param: str) -> list[tuple[str, ImagePart]]:
    """The images of messages, each with what its client calls it."""
    return [
        (part.place or _place(f"{param}[{i}].content[{at}]", part), part)
        for i, message in enumerate(messages)
        for at, part in message.images
    ]


def _place(where: str, part: ImagePart) -> str:
    return f"{where}.image_url" + ("" if isinstance(part.image_url, str) else ".url")


def refuse_images(messages: Sequence[Message], param: str) -> None:
    """BadRequestError if there are images, for a model without a tower."""
    for i, message in enumerate(messages):
        for at, part in message.images:
            place = SOURCE.sub(".type", part.place or _place(f"{param}[{i}].content[{at}]", part))
            raise BadRequestError(f"{place}: {TEXT_ONLY}; accepted: text", param=place)
