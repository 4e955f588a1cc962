"""Makes chat_templates.json: what transformers renders for every template and conversation here.

Run: python tests/golden/make_chat_templates.py [FOLDER OF MORE TEMPLATES] (needs transformers; the
result is committed). A template that refuses a conversation has null in place of text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jinja2
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DATE = {"date_string": "26 Jul 2024"}


def render(template: str, conversation: dict[str, object]) -> str | None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **SPECIAL_TOKENS)
    try:
        return str(
            tokenizer.apply_chat_template(
                conversation["messages"],
                tools=conversation.get("tools"),
                chat_template=template,
                add_generation_prompt=conversation.get("add_generation_prompt", True),
                tokenize=False,
                **DATE | conversation.get("kwargs", {}),
            )
        )
    except (jinja2.TemplateError, TypeError):
        return None


def render_all(folders: list[Path]) -> dict[str, dict[str, str | None]]:
    conversations = json.loads((HERE / "conversations.json").read_text())
    return {
        file.name: {
            name: render(file.read_text(encoding="utf-8"), conversation)
            for name, conversation in conversations.items()
        }
        for folder in folders
        for file in sorted(folder.glob("*.jinja"))
    }


if __name__ == "__main__":
    rendered = render_all([HERE / "templates", *map(Path, sys.argv[1:])])
    text = json.dumps(rendered, indent=1, ensure_ascii=False)
    (HERE / "chat_templates.json").write_text(text + "\n", encoding="utf-8")
