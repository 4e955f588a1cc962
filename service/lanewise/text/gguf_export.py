"""Says a Hugging Face tokenizer in GGUF's metadata, for files that other programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.loading.vocabulary.gguf_text import PREFIX, TEXT_KEYS, TokenType, template_keys
from lanewise.text.backend import Backend, Library
from lanewise.text.hf_tokenizer import hf_backend
from lanewise.text.pre_tokenizers import GPT2, PRE_TOKENIZERS
from lanewise.text.sampling_defaults import SamplingDefaults

# Where several names of tokenizer.ggml.pre stand for the same, those that every reader knows.
PREFERRED = (
    *("llama-bpe", "qwen2", "gpt-2", "smaug-bpe", "tekken", "smollm"),
    *("gpt-4o", "qwen35", "deepseek-v3", "seed-coder", "kimi-k2"),
)
LOWEST_SCORE = -1e6  # of SentencePiece tokens that no merge makes


def gguf_tokenizer(files: TokenizerFiles) -> dict[str, Any]:
    """Return the metadata of the tokenizer, the chat template and how answers are drawn.

    ModelFileError for a tokenizer that GGUF has no words for.
    """
    if files.gguf is not None:  # a directory that was made from GGUF
        return {key: value for key, value in files.gguf.items() if key.startswith(TEXT_KEYS)}
    backend = hf_backend(files)
    parsed = json.loads(files.text_files["tokenizer.json"])
    where = f"{files.path}/tokenizer.json"
    model = parsed["model"]
    if model.get("type") != "BPE":
        raise ModelFileError(f"{where}: model {model.get('type')!r}; accepted with --gguf: 'BPE'")
    tokens, types = _tokens(backend.tokenizer, files.vocab_size)
    found: dict[str, Any] = {"tokens": tokens, "token_type": types}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    if backend.byte_level:
        found |= {"model": "gpt2", "pre": _pre_tokenizer(parsed, where), "merges": merges}
    else:
        scores = _scores(tokens, merges)
        space = backend.strips_leading_space
        found |= {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": space}
    found |= {"add_bos_token": backend.add_bos} | _special_ids(backend, files)
    keys = {PREFIX + key: value for key, value in found.items()} | template_keys(backend.templates)
    return keys | SamplingDefaults.of_model(files).gguf_metadata()


def _tokens(tokenizer: Library, vocab_size: int) -> tuple[list[str], list[int]]:
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    by_id = {token_id: text for text, token_id in vocab.items()}
    added = tokenizer.get_added_tokens_decoder()
    unknown = getattr(tokenizer.model, "unk_token", None)
    tokens, types = [], []
    for token_id in range(vocab_size):
        text = by_id.get(token_id)
        if text is None:
            tokens.append(f"[PAD{token_id}]")
            types.append(TokenType.UNUSED)
            continue
        tokens.append(text)
        if token_id in added:
            kind = TokenType.CONTROL if added[token_id].special else TokenType.USER_DEFINED
            types.append(TokenType.UNKNOWN if text == unknown else kind)
        elif len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types.append(TokenType.BYTE)
        else:
            types.append(TokenType.NORMAL)
    return tokens, [int(kind) for kind in types]


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """The earlier a merge makes a token, the higher its score."""
    scores: dict[str, float] = {}
    for rank, pair in enumerate(merges):
        scores.setdefault(pair.replace(" ", ""), float(-rank))
    return [scores.get(token, LOWEST_SCORE) for token in tokens]


def _pre_tokenizer(parsed: Mapping[str, Any], where: str) -> str:
    """The name of how text is cut before merging."""
    found = parsed.get("pre_tokenizer") or {}
    steps = found.get("pretokenizers", [found])
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    if not patterns and any(step.get("type") == "ByteLevel" for step in steps):
        patterns = [GPT2]
    names = [name for name in PREFERRED if list(PRE_TOKENIZERS[name].patterns) == patterns]
    if not names:
        raise ModelFileError(
            f"{where}: pre_tokenizer: {json.dumps(found)[:120]} has no name in GGUF; accepted with"
            f" --gguf: those of {', '.join(PREFERRED)}"
        )
    ignore = bool(parsed["model"].get("ignore_merges"))
    exact = [name for name in names if PRE_TOKENIZERS[name].ignore_merges == ignore]
    return (exact or names)[0]


def _special_ids(backend: Backend, files: TokenizerFiles) -> dict[str, int]:
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {}
    for name, key in keys.items():
        text = backend.special_tokens.get(f"{name}_token")
        token_id = None if text is None else backend.tokenizer.token_to_id(text)
        if token_id is not None:
            ids[f"{key}_token_id"] = token_id
    if "eos_token_id" not in ids and backend.eos_ids:
        ids["eos_token_id"] = min(backend.eos_ids)
    return ids
