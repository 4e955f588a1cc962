"""What both kinds of tokenizer file become: a ``tokenizers`` object and the model's rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tokenizers import Tokenizer

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.text.limited_tokenizer import LimitedTokenizer

logger = logging.getLogger(__name__)

# Tokens that end a turn by convention; some models' configs forget to say so.
END_OF_TURN = (
    "<|eot_id|>",
    "<|eot|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<EOT>",
    "<\uff5cend▁of▁sentence\uff5c>",  # DeepSeek writes full-width bars
)
# Where there are these, <|end|> ends one message of several.
HARMONY_ENDS = ("<|return|>", "<|call|>")

Made = TypeVar("Made")
Library = Tokenizer | LimitedTokenizer


@dataclass(frozen=True)
class Backend:
    """A tokenizer of either origin."""

    tokenizer: Library
    ids: Collection[int]  # every id that stands for a token
    bos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool  # completions start with BOS
    byte_level: bool  # token text is bytes in printable disguise; otherwise SentencePiece pieces
    strips_leading_space: bool  # decoding drops the space put before the first word
    raw_ids: frozenset[int]  # tokens whose text is literal
    special_tokens: Mapping[str, str]  # bos_token, eos_token ... for templates
    templates: Mapping[str, str]
    fim_ids: Mapping[str, int] = field(default_factory=dict)  # by GGUF's names for them
    word_pieces: bool = False  # WordPiece: ## goes on with a word, all others begin one


def end_of_turn_ids(tokenizer: Library) -> set[int]:
    """Return the added tokens that end a turn by convention."""
    ids = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    names: set[str] = set(END_OF_TURN)
    if ids.keys() >= set(HARMONY_ENDS):
        names = names.union(HARMONY_ENDS) - {"<|end|>"}
    return {token_id for name, token_id in ids.items() if name in names}


def build(source: str, make: Callable[[], Made]) -> Made:
    """Return what ``make`` returns, with the library's errors as ModelFileError."""
    try:
        return make()
    except (KeyboardInterrupt, SystemExit, ModelFileError):
        raise
    except BaseException as error:  # a Rust panic arrives as a BaseException
        raise ModelFileError(f"{source}: not a usable tokenizer: {error}") from error


def warn_of_rowless(source: str, texts: Sequence[str]) -> None:
    """Say that the model has no rows for added tokens, which are left out and stay text."""
    logger.warning(
        "%s: the model has no rows for %d added tokens, the first %r; they are text",
        *(source, len(texts), texts[0]),
    )
