"""Whether requests may bring images: for models with a tower, where Pillow is installed."""

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict

from lanewise.api.shared.image_fetch import Fetcher, Host
from lanewise.api.shared.images import Eyes
from lanewise.loading.base.vision import VisionFacts
from lanewise.sandbox.images import ImageService
from lanewise.sandbox.pool import Sandbox
from lanewise.settings import Settings, SettingsError
from lanewise.text.images.families import family_of
from lanewise.text.images.layouts import PreprocessorError
from lanewise.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def make_eyes(
    settings: Settings,
    vision: VisionFacts | None,
    tokenizer: Tokenizer,
    windows: Sequence[int | None],
) -> Callable[[Sandbox], Eyes] | None:
    """What reads images in a sandbox; None, with a line in the log, where none can be read.

    ``windows`` are the tokens that each sees, itself included, in the model's layers.
    """
    if vision is None:
        return None
    if importlib.util.find_spec("PIL") is None:
        logger.warning("images are refused: Pillow is not installed (extra `vision`)")
        return None
    token = vision.image_token_id
    if token is None or not tokenizer.is_special(token):
        logger.warning("images are refused: the token for them, %s, is no control token", token)
        return None
    placeholder, facts = tokenizer.token_text(token), asdict(vision)
    room = min(settings.max_step_tokens, *(one for one in windows if one is not None), 1 << 30)
    if vision.both_ways != "none":  # an image is in one step, and in one window
        facts["max_tokens_per_image"] = min(vision.max_tokens_per_image or room, room)
    try:
        family = family_of(facts, placeholder)
    except PreprocessorError as error:
        logger.warning("images are refused: %s", error)
        return None

    most = max(view.n_tokens for view in family.layout((1024, 1024), "high").views)
    if vision.both_ways != "none" and most > room:
        logger.warning(
            "images are refused: a step and a window have all %d tokens of one; there is room for"
            " %d; accepted: a larger max_step_tokens, if that is less",
            *(most, room),
        )
        return None

    hosts = [_host(text) for text in settings.image_hosts]

    def see(sandbox: Sandbox) -> Eyes:
        return Eyes(
            service=ImageService(sandbox, facts, placeholder, settings.max_image_pixels),
            written_as=family.mark,
            placeholder=token,
            max_images=settings.max_images,
            max_bytes=settings.max_image_bytes,
            fetcher=Fetcher(hosts, settings.image_fetch_timeout_s) if hosts else None,
        )

    return see


def _host(text: str) -> Host:
    try:
        return Host.of(text)
    except ValueError:
        raise SettingsError(
            f"image_hosts: {text!r} is no host; accepted: such as example.org, *.example.org:8443"
            " and http://example.org"
        ) from None
