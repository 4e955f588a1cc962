"""The small files of a directory for tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

from lanewise.loading.base.checkpoint import TokenizerFiles
from lanewise.loading.base.json_files import read_object, read_text
from lanewise.loading.vocabulary.plain_vocabulary import read_plain_vocabulary

# In packed directories made from GGUF, in place of tokenizer.json.
GGUF_TOKENIZER = "tokenizer_gguf.json"
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
)


def read_tokenizer_files(path: Path, vocab_size: int) -> TokenizerFiles:
    """Read the small files for tokenizer and chat template."""
    if (path / GGUF_TOKENIZER).is_file():
        source = path / GGUF_TOKENIZER
        return TokenizerFiles(source, vocab_size, gguf=read_object(source))
    json_files = {name: read_object(path / name) for name in JSON_FILES if (path / name).is_file()}
    text_names = ["tokenizer.json", "chat_template.jinja"]
    folder = "additional_chat_templates"
    text_names += [f"{folder}/{file.name}" for file in sorted((path / folder).glob("*.jinja"))]
    text_files = {name: read_text(path / name) for name in text_names if (path / name).is_file()}
    plain = None
    if "tokenizer.json" not in text_files:
        plain = read_plain_vocabulary(path, json_files, text_files, vocab_size)
    return TokenizerFiles(path, vocab_size, plain, json_files, text_files)


def model_name(path: Path) -> str:
    """Return the directory's name, or org/name for a snapshot in the hub's cache."""
    path = path.resolve()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
    return path.name
