"""What the text of a chat template tells of the form in which its family answers."""

from __future__ import annotations

import re

from lanewise.text.answers.braced_calls import GEMMA
from lanewise.text.answers.calls import CallFormat
from lanewise.text.answers.content_tags import (
    COMMAND_RESPONSE,
    HUNYUAN_ANSWER,
    HUNYUAN_LABELLED,
    ContentTags,
)
from lanewise.text.answers.json_calls import (
    APERTUS,
    COMMAND,
    GENERIC,
    GRANITE,
    HERMES,
    HUNYUAN,
    LLAMA,
    MISTRAL,
    NEMOTRON,
    PHI,
    PYTHON_TAG,
)
from lanewise.text.answers.named_calls import MISTRAL_NAMED, MISTRAL_WITH_IDS
from lanewise.text.answers.nested_calls import MINIMAX_M3
from lanewise.text.answers.python_calls import LFM2, OLMO
from lanewise.text.answers.sectioned_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from lanewise.text.answers.tagged_calls import GLM, GLM_TIGHT, MINIMAX, QWEN3_CODER, SEED
from lanewise.text.answers.thinking import (
    APERTUS_THINK,
    COMMAND_THINK,
    GEMMA_THINK,
    MINIMAX_THINK,
    MISTRAL_THINK,
    SEED_THINK,
    THINK,
    ThinkingTags,
)


def call_format(text: str) -> CallFormat:
    """How calls are written, by what a template says of them."""
    if "[TOOL_CALLS]" in text:
        if "[ARGS]" in text:
            return MISTRAL_WITH_IDS if "[CALL_ID]" in text else MISTRAL_NAMED
        return MISTRAL
    if DEEPSEEK.begin in text and re.search(r"\btools\b", text):
        return DEEPSEEK if "```json" in text else DEEPSEEK_V31
    if KIMI.begin in text:
        return KIMI
    if "<|tool_list_start|>" in text or LFM2.begin in text:
        return LFM2
    if "<TOOLCALL>" in text:
        return NEMOTRON
    if APERTUS.begin[:-1] in text:
        return APERTUS
    if "<|START_ACTION|>" in text and '"tool_name"' in text:
        return COMMAND
    if GEMMA.begin in text:
        return GEMMA
    if OLMO.begin in text:
        return OLMO
    if HUNYUAN.begin in text:
        return HUNYUAN
    if "<seed:tool_call>" in text:
        return SEED
    if MINIMAX_M3.mark in text:
        return MINIMAX_M3
    if "<tool_call>" in text:
        if "<arg_key>" in text:
            return GLM_TIGHT if "</arg_key><arg_value>" in text else GLM
        return QWEN3_CODER if "<function=" in text else HERMES
    if "<minimax:tool_call>" in text:
        return MINIMAX
    if "<|/tool|>" in text or "<|/tool_call|>" in text:
        return PHI
    if "<|tool_call|>" in text:
        return GRANITE
    if PYTHON_TAG in text or '"parameters": ' in text:
        return LLAMA
    return HERMES if re.search(r"\btools\b", text) else GENERIC


def thinking_tags(text: str) -> ThinkingTags | None:
    """What is around reasoning."""
    known = (
        SEED_THINK,
        MINIMAX_THINK,
        MISTRAL_THINK,
        GEMMA_THINK,
        COMMAND_THINK,
        APERTUS_THINK,
        THINK,
    )
    # Some templates name only what they end their prompt with.
    return next((tags for tags in known if tags.end in text or tags.begin in text), None)


def content_tags(text: str) -> ContentTags | None:
    """What may be around content."""
    if COMMAND_RESPONSE.begin in text:
        return COMMAND_RESPONSE
    if HUNYUAN.begin in text and HUNYUAN_LABELLED.label in text:
        return HUNYUAN_LABELLED
    return HUNYUAN_ANSWER if HUNYUAN_ANSWER.begin in text or "hy_Assistant" in text else None
