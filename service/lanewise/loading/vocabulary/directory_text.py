"""Chat templates and special tokens from the small files of a directory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError

logger = logging.getLogger(__name__)

CONFIG = "tokenizer_config.json"
SPECIAL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

Files = Mapping[str, Mapping[str, Any]]  # parsed files by name


def special_tokens(path: Path, json_files: Files) -> dict[str, str]:
    """Return the texts of special tokens such as bos_token, by their names."""
    special, config = {}, json_files.get(CONFIG, {})
    for name in (f"{name}_token" for name in SPECIAL_NAMES):
        value = config.get(name)
        if value is None:
            value = json_files.get("special_tokens_map.json", {}).get(name)
        if isinstance(value, Mapping):  # older form: the text with flags
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise ModelFileError(
                f"{path}/tokenizer_config.json: {name}: {value!r}; a string is needed"
            )
        special[name] = value
    return special


def warn_of_no_token(source: str, token_id: int, count: int) -> None:
    """Log that a file names a token id outside of the vocabulary, which is ignored."""
    logger.warning("%s: %d is not the id of one of the %d tokens; ignored", source, token_id, count)


def end_ids(path: Path, json_files: Files, vocab_size: int) -> list[int]:
    """Return the ids of the tokens that end answers, each once; unknown ids are ignored."""
    ids: list[int] = []
    for name in ("config.json", "generation_config.json"):
        value = json_files.get(name, {}).get("eos_token_id")
        for item in value if isinstance(value, list) else [value]:
            if item is None:
                continue
            if type(item) is not int:
                raise ModelFileError(f"{path}/{name}: eos_token_id: {item!r} is not a token id")
            if not 0 <= item < vocab_size:
                warn_of_no_token(f"{path}/{name}: eos_token_id", item, vocab_size)
            elif item not in ids:
                ids.append(item)
    return ids


def chat_templates(path: Path, json_files: Files, text_files: Mapping[str, str]) -> dict[str, str]:
    """Return the chat templates by name, "default" among them; empty if there are none."""
    templates: dict[str, str] = {}
    config = json_files.get(CONFIG, {})
    found = config.get("chat_template")
    if found is None:
        found = json_files.get("chat_template.json", {}).get("chat_template")
    if isinstance(found, str):
        templates["default"] = found
    elif isinstance(found, list):
        for entry in found:
            if not isinstance(entry, Mapping) or not all(
                isinstance(entry.get(key), str) for key in ("name", "template")
            ):
                raise ModelFileError(
                    f"{path}/tokenizer_config.json: chat_template: entries need a name and"
                    " a template"
                )
            templates[entry["name"]] = entry["template"]
    elif found is not None:
        raise ModelFileError(
            f"{path}/tokenizer_config.json: chat_template: a string or a list is needed"
        )
    # Template files are the newer form and override the config.
    extra = {
        name.rpartition("/")[2].removesuffix(".jinja"): text
        for name, text in text_files.items()
        if "/" in name
    }
    if "chat_template.jinja" in text_files or extra:
        templates = extra
        if "chat_template.jinja" in text_files:
            templates["default"] = text_files["chat_template.jinja"]
    return templates
