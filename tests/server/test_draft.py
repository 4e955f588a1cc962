"""A draft model must have the model's tokens."""

import pytest

from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.server.draft import check_vocabulary
from lanewise.settings import SettingsError
from lanewise.text.tokenizer import Tokenizer
from toy_tokenizer import toy_tokenizer


def bundled() -> Tokenizer:
    with open_checkpoint(resolve_model(None)) as checkpoint:
        return Tokenizer.from_files(checkpoint.tokenizer)


def test_the_same_vocabulary_is_accepted():
    check_vocabulary(bundled(), bundled(), "small")
    check_vocabulary(toy_tokenizer(), toy_tokenizer(), "toy")
    assert bundled().first_unlike(bundled()) is None


def test_another_vocabulary_is_refused_with_the_first_token_that_differs():
    with pytest.raises(SettingsError, match=r"draft is toy, whose token \d+ is .*, the model's "):
        check_vocabulary(bundled(), toy_tokenizer(), "toy")
