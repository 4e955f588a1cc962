"""Answers as six kinds of templates have them, for a toy model that says them word for word."""

import json
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import answer_texts
from answer_texts import Answer
from lanewise.text.answers.harmony import TOKENS
from lanewise.text.answers.tagged_calls import QWEN3_CODER
from toy_server import CONFIG, RunningServer, toy_server

SPECIAL = (*TOKENS, "[TOOL_CALLS]", "[ARGS]")
NAMES = [name for name in answer_texts.TOOLS if "." not in name]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": answer_texts.TOOLS[name]}}
    for name in NAMES
]
MESSAGES = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}<|assistant|>"
)
HARMONY = MESSAGES + "<|start|>assistant{# <|channel|>analysis <|message|> #}"


def scripted_server() -> AbstractContextManager[RunningServer]:
    """One whose tokenizer knows the control tokens, with room for the longest of the answers."""
    return toy_server(replace(CONFIG, max_model_len=2048, n_blocks=512), more_special=SPECIAL)


def call_of(rng: random.Random) -> tuple[str, dict[str, object]]:
    while (found := answer_texts.call(rng))[0] not in NAMES:
        pass
    return found


def plain(rng: random.Random) -> Answer:
    return Answer([f"Well {answer_texts.words(rng, 40)}"])


def thinking(rng: random.Random) -> Answer:
    thought, said = answer_texts.words(rng, 20), answer_texts.words(rng, 30)
    return Answer([f"<think>\n{thought}\n</think>\n\n{said}"])


def hermes(rng: random.Random) -> Answer:
    answer = thinking(rng) if rng.random() < 0.3 else plain(rng)
    for _ in range(rng.randrange(4)):
        name, arguments = call_of(rng)
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        answer.parts.append(f"\n<tool_call>\n{body}\n</tool_call>")
    return answer


def mistral(rng: random.Random) -> Answer:
    answer = Answer([rng.choice(["", "Let me see."])])
    for _ in range(1 + rng.randrange(3)):
        name, arguments = call_of(rng)
        answer.parts += [answer_texts.Token("[TOOL_CALLS]"), name, answer_texts.Token("[ARGS]")]
        answer.parts.append(json.dumps(arguments))
    return answer


FORMS: dict[str, tuple[str, Callable[[random.Random], Answer]]] = {
    "no tools": (MESSAGES.replace("tools", "nothing"), plain),
    "thinks": (MESSAGES + "{# </think> #}", thinking),
    "hermes": (MESSAGES + "{# <tool_call> </think> #}", hermes),
    "mistral": (MESSAGES + "{# [TOOL_CALLS] [ARGS] #}", mistral),
    "qwen3 coder": (
        MESSAGES + "{# <tool_call> <function= </think> #}",
        partial(answer_texts.tagged, form=QWEN3_CODER),
    ),
    "harmony": (HARMONY, answer_texts.harmony),
}


def ids_of(tokenizer, answer: Answer) -> list[int]:
    ids: list[int] = []
    for part in answer.parts:
        special = isinstance(part, answer_texts.Token)
        ids += tokenizer.encode(part, add_bos=False, parse_special=special)
    return ids[:900]
