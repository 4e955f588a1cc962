"""What workers do: functions of JSON values, that nothing here bounds."""

import json
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from lanewise.sandbox.memory import resident_bytes
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.conversation import render_conversation
from lanewise.text.grammar import GrammarError, GrammarSource, first_matchers, library_grammar
from lanewise.text.grammar_probe import ProbeVocabulary
from lanewise.text.image_parts import ImageMarks
from lanewise.text.images.layouts import ImageError

TEMPLATE, VOCABULARY, IMAGES = "template", "vocabulary", "images"


class RefusedError(Exception):
    """The job's own input is at fault; the message says how."""


def make_template(value: dict[str, Any]) -> ChatTemplate:
    """A compiled template, or one whose use says why it could not be compiled."""
    template = ChatTemplate(value["sources"], value["special_tokens"])
    try:
        template.compile()
    except ChatTemplateError as error:
        raise RefusedError(str(error)) from None
    return template


def check_template(made: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    """What it took to make the template."""
    cpu_s, n_bytes = time.process_time(), resident_bytes()
    ChatTemplate(made[payload["template"]].sources).compile()
    return {"cpu_s": time.process_time() - cpu_s, "n_bytes": resident_bytes() - n_bytes}


def render_template(made: dict[str, Any], payload: dict[str, Any]) -> str:
    """The text of a conversation."""
    template: ChatTemplate = made[payload["template"]]
    try:
        return render_conversation(
            template,
            payload["messages"],
            payload["tools"],
            payload["variables"],
            add_generation_prompt=payload["add_generation_prompt"],
            continued=payload["continued"],
            most_characters=payload["most_characters"],
            images=ImageMarks(*payload["images"]) if payload["images"] else None,
        )
    except ChatTemplateError as error:
        raise RefusedError(str(error)) from None


def compile_grammar(made: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    """A grammar in the library's notation, and the memory that it takes compiled."""
    before = resident_bytes()
    try:
        grammar = library_grammar(
            GrammarSource(payload["kind"], payload["text"], payload["before"])
        )
        matchers = first_matchers(made[payload["vocabulary"]].library, grammar)
    except GrammarError as error:
        raise RefusedError(str(error)) from None
    n_bytes = max(resident_bytes() - before, 0)
    del matchers
    return {"grammar": grammar, "n_bytes": n_bytes}


def make_reader(value: dict[str, Any]) -> Any:
    """What reads the images of one model; only here is Pillow imported."""
    from lanewise.text.images.families import family_of
    from lanewise.text.images.reading import ImageReader

    facts, placeholder = value["facts"], value["placeholder"]
    settings = json.dumps([facts, placeholder], sort_keys=True).encode()
    return ImageReader(
        family_of(facts, placeholder), blake2b(settings).digest(), value["most_pixels"]
    )


def read_image(made: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    """What a model's tower sees of an image, or why it is none."""
    reader, data = made[payload["reader"]], payload.get("raw", b"")
    try:
        found: dict[str, Any] = reader.read(
            data, payload["detail"], wants_pixels=payload["wants_pixels"]
        )
    except ImageError as error:
        return {"code": error.code, "error": str(error)}
    return found


SET_UPS: dict[str, Callable[[Any], Any]] = {
    TEMPLATE: make_template,
    VOCABULARY: ProbeVocabulary,
    IMAGES: make_reader,
}
JOBS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "check": check_template,
    "render": render_template,
    "compile": compile_grammar,
    "image": read_image,
}
