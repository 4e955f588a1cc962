"""Images in what templates get: parts of lists, and text where a template reads texts only."""

import pytest

from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.conversation import render_conversation
from lanewise.text.image_parts import ImageMarks
from seeing_models import LISTS, SEEING

MARK = "\ufdd0"
IMAGES = ImageMarks(MARK, "<image>")
TEXTS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
KEYS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if 'image_url' in part %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": f"{MARK}{MARK}What is it?"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": f"And\n{MARK}this?"},
]


def rendered(template: str, messages: list[dict], images: ImageMarks | None = IMAGES) -> str:
    made = ChatTemplate({"default": template})
    return render_conversation(made, messages, None, {}, add_generation_prompt=True, images=images)


def test_images_are_parts_in_their_places() -> None:
    assert rendered(LISTS, TALK) == (
        "<|im_start|>System: Be short.<end_of_utterance>\n"
        "User:<image><image>What is it?<end_of_utterance>\n"
        "Assistant: A cat.<end_of_utterance>\n"
        "User: And\n<image>this?<end_of_utterance>\nAssistant:"
    )
    assert rendered(KEYS, TALK) == ("Be short.<image><image>What is it?A cat.And\n<image>this?")


def test_a_template_that_reads_texts_gets_what_it_would_write() -> None:
    assert rendered(TEXTS, TALK).splitlines()[1] == "[user] <image><image>What is it?"


def test_a_template_that_reads_lists_alone_shows_texts_without_images_too() -> None:
    said = rendered(LISTS, [{"role": "user", "content": "Hello"}], None)
    assert "User: Hello<end_of_utterance>" in said
    both = [*TALK[:1], {"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    assert "Two." in rendered(LISTS, both, None)


def test_turns_that_become_one_keep_their_images() -> None:
    strict = (
        "{% for m in messages %}{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        + KEYS.removeprefix("{% for m in messages %}")
    )
    turns = [{"role": "user", "content": f"{MARK}a"}, {"role": "user", "content": f"b{MARK}"}]
    assert rendered(strict, turns) == "<image>a\n\nb<image>"


def test_a_template_that_drops_or_repeats_images_is_refused() -> None:
    for template in (
        "{{ messages[-1].content | length }}",
        "{% for m in messages %}" + KEYS + "{% endfor %}",
    ):
        with pytest.raises(ChatTemplateError, match="<image> once for each image"):
            rendered(template, TALK)
    refusing = "{{ raise_exception('no images') }}"
    with pytest.raises(ChatTemplateError, match="no images"):
        rendered(refusing, TALK)


@pytest.mark.parametrize("family", SEEING)
def test_templates_of_tiny_models_write_one_mark_each(family: str) -> None:
    written_as = {"gemma3": "<start_of_image>", "qwen3_5": "<|image_pad|>", "mistral3": "[IMG]"}
    images = ImageMarks(MARK, written_as.get(family, "<image>"))
    text = rendered(SEEING[family].template, TALK, images)
    assert text.count(images.written_as) == 3
