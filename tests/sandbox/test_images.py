"""Images read in the sandbox: limits end its processes, and the server goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from lanewise.api.shared.budgets import TextBudgets
from lanewise.sandbox.images import ImageService
from lanewise.sandbox.lane import Limits
from lanewise.sandbox.pool import Sandbox, uncounted
from lanewise.settings import Settings
from lanewise.text.images.layouts import ImageError
from pictures import encoded, picture, png

FACTS = {
    "family": "smolvlm",
    "patch_size": 4,
    "merge": 4,
    "preprocessor": {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
}
OTHERS = Limits(cpu_s=1.0, memory=64 << 20, answer=1 << 20)
T = TypeVar("T")


def within(limits: Limits, work: Callable[[ImageService], Awaitable[T]]) -> T:
    async def run() -> T:
        sandbox = Sandbox(OTHERS, OTHERS, limits, uncounted())
        try:
            service = ImageService(sandbox, FACTS, "<image>", 50_000_000)
            await service.prepare()
            return await work(service)
        finally:
            await sandbox.close()

    return asyncio.run(run())


def test_pixels_come_back_as_they_are_and_sizes_alone_too() -> None:
    async def work(service: ImageService) -> None:
        whole = await service.read(png(64, 32), "auto", 0, wants_pixels=True)
        sizes = await service.read(png(64, 32), "auto", 0, wants_pixels=False)
        again = await service.read(png(64, 32), "auto", 0, wants_pixels=True)
        assert whole == again
        assert whole.size == sizes.size == (64, 32)
        assert [len(view.pixels) for view in whole.views] == [3 * 32 * 32] * 3
        assert len({view.digest for view in whole.views}) == 3
        # A tile is a part of the image as it is: no resize has changed it.
        assert bytes(whole.views[0].pixels[:9]) == bytes((0, 0, 0, 7, 0, 1, 14, 0, 2))
        assert [(view.digest, len(view.pixels)) for view in sizes.views] == [(b"", 0)] * 3
        assert whole.n_tokens == sizes.n_tokens == 12
        assert whole.text == sizes.text

    within(Limits(cpu_s=5.0, memory=512 << 20, answer=1 << 20), work)


@pytest.mark.parametrize(
    ("limits", "size", "said"),
    [
        (Limits(cpu_s=0.05, memory=1 << 30, answer=1 << 20), 3000, "not read within 0.05 s"),
        (Limits(cpu_s=9.0, memory=8 << 20, answer=1 << 20), 3000, "needs more than 8 MiB"),
        (Limits(cpu_s=9.0, memory=1 << 30, answer=1 << 10), 64, "more than 1024 bytes"),
    ],
)
def test_an_image_that_takes_too_much_is_refused_and_the_next_is_read(
    limits: Limits, size: int, said: str
) -> None:
    large = png(size, size)

    async def work(service: ImageService) -> None:
        with pytest.raises(ImageError, match=said) as caught:
            await service.read(large, "auto", 0, wants_pixels=True)
        assert caught.value.code == "image_parse_error"
        assert (await service.read(png(8, 8), "low", 0, wants_pixels=False)).size == (8, 8)

    within(limits, work)


def test_a_photograph_is_read_within_the_limits_of_a_server() -> None:
    """One of 12 megapixels, for tiles of SmolVLM's own size."""
    photo = encoded(picture(4000, 3000), "JPEG", quality=90)
    sizes = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    facts = {"family": "smolvlm", "patch_size": 16, "merge": 4, "preprocessor": sizes}

    async def run() -> None:
        sandbox = TextBudgets.of(Settings()).sandbox(8192, uncounted())
        try:
            service = ImageService(sandbox, facts, "<image>", Settings.max_image_pixels)
            found = await service.read(photo, "auto", 0, wants_pixels=True)
            assert found.size == (4000, 3000)
            assert len(found.views) > 1
            assert {len(view.pixels) for view in found.views} == {3 * 512 * 512}
        finally:
            await sandbox.close()

    asyncio.run(run())
