"""What belongs to a model's text: its tokenizer, its chat template and how answers are drawn."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lanewise.loading.base.checkpoint import Checkpoint, TokenizerFiles
from lanewise.settings import Settings, SettingsError
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.sampling_defaults import SamplingDefaults, source_of

if TYPE_CHECKING:
    from lanewise.text.pooled_text import PooledText
    from lanewise.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Text(NamedTuple):
    """What belongs to a model's text."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling: SamplingDefaults
    pooling: PooledText | None = None  # of a model that is pooled
    notice: str | None = None  # what users must be told of the model


def text_of_pooled(checkpoint: Checkpoint, text: Text) -> Text:
    """The same with what belongs to vectors, of a model that is pooled."""
    from lanewise.text.pooled_text import of_checkpoint

    if checkpoint.config.pooling is None:
        return text
    pooled = of_checkpoint(checkpoint, text.tokenizer)
    return text._replace(pooling=pooled, chat_template=None)


def make_text(settings: Settings, files: TokenizerFiles) -> Text:
    """What the settings say, or else the model's files."""
    from lanewise.text.tokenizer import Tokenizer

    sampling = read_sampling(settings, files)
    if settings.chat_template is None:
        tokenizer = Tokenizer.from_files(files)
        return Text(tokenizer, tokenizer.chat_template, sampling)
    with ThreadPoolExecutor(1, "lanewise-template") as pool:
        checking = pool.submit(read_template, settings, settings.chat_template)
        tokenizer = Tokenizer.from_files(files)
        template = ChatTemplate({"default": checking.result()}, tokenizer.special_tokens)
        return Text(tokenizer, template, sampling)


def read_sampling(settings: Settings, files: TokenizerFiles) -> SamplingDefaults:
    """How answers are drawn when requests do not say."""
    if settings.generation_config == "off":
        return SamplingDefaults()
    found = SamplingDefaults.of_model(files)
    if described := str(found):
        logger.info(
            "requests that do not say otherwise get %s (%s; --generation-config off: not)",
            *(described, source_of(files)),
        )
    return found


def read_template(settings: Settings, path: str) -> str:
    """The text of a template that somebody asked for by name, which must be one."""
    from lanewise.api.shared.budgets import TextBudgets
    from lanewise.sandbox.alone import check_alone
    from lanewise.sandbox.pool import uncounted

    try:
        text = Path(path).read_text(encoding="utf-8")
        sandbox = TextBudgets.of(settings).sandbox(0, uncounted())
        check_alone(ChatTemplate({"default": text}), sandbox)
    except (ChatTemplateError, UnicodeDecodeError) as error:
        raise SettingsError(f"chat_template: {path}: {error}") from None
    return text
