"""A tiny random Qwen3 that answers yes or no, as the makers of Qwen3-Reranker publish theirs."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from family_models import GOLDEN, FamilyModel, model_of

VOCAB = 512
# Of the model card.
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and"
    ' the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = "the river rises slowly over wide fields and nobody counts the houses that it takes with it"
# No scaled positions, and room for a prompt.
CHANGES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
OVERRIDES = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}


def body_of(query: str, document: str, instruction: str = INSTRUCTION) -> str:
    """What stands between prefix and suffix."""
    return f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"


@cache
def byte_pairs() -> Tokenizer:
    """As Qwen's tokenizer.json, with a vocabulary of a few hundred."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [PREFIX, body_of(TEXT, TEXT), SUFFIX, '"yes" "no"', "?\n", ".\n"]
    tokenizer.train_from_iterator(texts * 4, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    assert {"yes", "no", "?Ċ"} <= tokenizer.get_vocab().keys()
    return tokenizer


def judge_model() -> FamilyModel:
    """The family's model with a row for each token."""
    written = json.loads((GOLDEN / "families.json").read_text())["qwen3"]
    shapes = {
        name: [VOCAB, shape[1]] if "embed_tokens" in name else shape
        for name, shape in written["tensors"].items()
    }
    return model_of("judge", {"config": written["config"] | CHANGES, "tensors": shapes})


def write_judge(folder: Path, **config: Any) -> Path:
    """Write its directory, with more in config.json; return it."""
    model = judge_model()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config | config))
    save_file(model.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    byte_pairs().save(str(folder / "tokenizer.json"))
    return folder
