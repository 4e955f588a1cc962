"""Generative models that score pairs by the odds of yes against no: Qwen3-Reranker.

The original files do not say so. It is added in config.json (vLLM), modules.json
(sentence-transformers) or GGUF metadata (llama.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.json_files import Fields, parse_object, read_object, read_text
from lanewise.loading.families.encoders_gguf import GGUF_TEMPLATE
from lanewise.loading.pooling.pooled import as_judge
from lanewise.loading.pooling.sentence_transformers import read_logit_score

FAMILY = "qwen3"  # the only family whose prompt for pairs is known
ANSWERS = ("no", "yes")
TOKENS, ORIGINAL, METHOD = "classifier_from_token", "is_original_qwen3_reranker", "method"
TOKENIZER = "tokenizer.json"
# As published with the model.
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and"
    ' the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer"
    " the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def with_answers(fields: Fields, path: Path) -> Fields:
    """Return a directory's config.json, with a judge's fields if modules.json declares one.

    ModelFileError for an unknown kind of judge.
    """
    ids = read_logit_score(path)
    if ids is not None and not fields.is_set(TOKENS):
        names = {token: name for name, token in _vocabulary(path).items()}
        found = [names.get(token) for token in reversed(ids)]
        fields = Fields({**fields.values, TOKENS: found}, fields.source)
    original = fields.flag(ORIGINAL, default=False)
    if original and not fields.is_set(TOKENS):
        fields = Fields({**fields.values, TOKENS: list(ANSWERS)}, fields.source)
    fields.ignore(TOKENS, ORIGINAL, METHOD)
    if not is_judge(fields.values):
        return fields
    if fields.values[TOKENS] != list(ANSWERS):
        raise fields.fail(TOKENS, f"{list(ANSWERS)}, as Qwen3-Reranker has them,")
    if fields.text("model_type") != FAMILY:
        raise fields.fail("model_type", f"{FAMILY!r}, with {TOKENS},")
    if fields.text(METHOD, default="from_2_way_softmax") != "from_2_way_softmax":
        raise fields.fail(METHOD, "'from_2_way_softmax'")
    return fields


def is_judge(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json says that texts are scored by possible next tokens."""
    return config.get(TOKENS) is not None


def make_judge(checkpoint: Checkpoint) -> None:
    """Make a directory's model score texts by its answer tokens, before it is loaded."""
    tokens = _vocabulary(checkpoint.path)
    missing = [answer for answer in ANSWERS if answer not in tokens]
    if missing:
        raise ModelFileError(
            f"{checkpoint.path / TOKENIZER}: no token {' and '.join(map(repr, missing))}, which"
            f" {TOKENS} names"
        )
    as_judge(checkpoint, [tokens[answer] for answer in reversed(ANSWERS)])


def template_of(checkpoint: Checkpoint) -> str | None:
    """Return a judge's prompt with {query} and {document}; None if the model is no judge."""
    pooling, files = checkpoint.config.pooling, checkpoint.tokenizer
    if pooling is None or not pooling.dense:
        return None
    if files.gguf is not None:
        template = files.gguf.get(GGUF_TEMPLATE) if pooling.kind == "last" else None
        return template if isinstance(template, str) else None
    return TEMPLATE if is_judge(files.json_files.get("config.json", {})) else None


def _vocabulary(path: Path) -> dict[str, int]:
    source = path / TOKENIZER
    whole = parse_object(read_text(source), str(source))
    model = whole.get("model")
    found = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(found, Mapping):
        raise ModelFileError(f"{source}: model.vocab is missing; an object of tokens is needed")
    return {name: token for name, token in found.items() if type(token) is int}


def overridden(path: Path, overrides: Mapping[str, Any]) -> Fields:
    """Return a directory's config.json with some keys replaced."""
    return Fields(read_object(path) | dict(overrides), str(path))
