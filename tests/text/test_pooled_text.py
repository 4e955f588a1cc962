"""What a checkpoint's files say of the scores of pairs."""

import math
from dataclasses import replace

import pytest
from tiny_tokenizers import hf_files

from encoder_tokenizers import word_piece
from lanewise.text.pooled_text import PooledText, pooled_text
from lanewise.text.tokenizer import Tokenizer

IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"


def judge(**config: object) -> PooledText:
    """A model that scores pairs, whose config.json says so much more."""
    library = word_piece()
    files = hf_files(library.to_str(), library.get_vocab_size(), tokenizer_config={})
    said = {"architectures": ["BertForSequenceClassification"]} | config
    files = replace(files, json_files={**files.json_files, "config.json": said})
    tokenizer = Tokenizer.from_files(files)
    return pooled_text(
        tokenizer, files, None, has_types=True, pooling="cls", normalize=False, n_outputs=1
    )


@pytest.mark.parametrize(
    ("config", "is_raw"),
    [
        ({}, False),
        ({"sbert_ce_default_activation_function": IDENTITY}, True),
        ({"sbert_ce_default_activation_function": SIGMOID}, False),
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"}}, True),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, False),
        ({"sentence_transformers": {"version": "4.1.0"}}, False),
    ],
)
def test_scores_are_read_as_the_makers_of_the_model_say(config, is_raw) -> None:
    found = judge(**config).scores([-2.0, 0.0, 3.0])
    wanted = [-2.0, 0.0, 3.0]
    assert found == pytest.approx(
        wanted if is_raw else [1 / (1 + math.exp(-score)) for score in wanted]
    )
