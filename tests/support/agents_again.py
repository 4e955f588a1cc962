"""Sends what agents have sent to the real application, whose model says what it said then."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np

import toy
from lanewise.engine.engine import Engine
from lanewise.engine.metering.metrics import Metrics
from lanewise.text.chat_template import ChatTemplate
from recorded_agents import Recorded, answer_of, nameless
from scripted_engine import Director, Lines, Told
from scripted_forms import Script
from scripted_models import kind_of, marks_of
from toy_server import CONFIG, make_engine, serving, toy_state
from toy_tokenizer import toy_tokenizer

TEMPLATES = (
    "Qwen-Qwen2.5-7B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "google-gemma-2-2b-it",
)
ROOM = replace(CONFIG, max_model_len=65536, n_blocks=8192, max_step_tokens=8192)


class NothingComputed(toy.ToyRunner):
    """As the toy, but every token is as likely as every other: long prompts cost nothing."""

    def step_and_draw(self, batch, draws):  # type: ignore[no-untyped-def]
        """Draw from what masks and biases make of that."""
        self._copy(batch)
        self._wait_for_release()  # masks are filled beside it
        row = np.zeros(self._vocab_size, np.float32)
        drawn = [toy._sample(row, one) for one in draws]
        self._drawn = [one.token for one in drawn]
        return drawn


class QuickRunner(Told, NothingComputed):  # type: ignore[misc]
    """Says what it is told, at once."""

    def __init__(self, like: toy.ToyRunner, refused: list[str]) -> None:
        self.__dict__ |= like.__dict__
        self.lines: dict[int, Lines] = {}
        self.refused = refused.append


@dataclass(frozen=True)
class Outcome:
    """What came of a request, and what the script had for it."""

    status: int
    text: str  # without what differs each time
    prompts: list[str]
    answer: dict[str, Any]
    said: dict[str, Any]


@dataclass
class Again:
    """The application, and what it has been asked and told."""

    client: httpx.Client
    director: Director
    refused: list[str]
    script: list[Script | None]

    def send(self, one: Recorded) -> Outcome:
        """Send a request again."""
        self.script[0] = Script.of_rules(one.rules)
        n_before = len(self.director.prompts)
        response = self.client.request(
            one.method, one.path, content=one.body.encode(), headers=dict(one.headers)
        )
        prompts = self.director.prompts[n_before:]
        said = self.director.said[-1].as_answer if prompts else {}
        answer = answer_of(response.text) if prompts else {}
        return Outcome(response.status_code, nameless(response.text), prompts, answer, said)


@contextmanager
def application(template: str) -> Iterator[Again]:
    """One with a chat template, whose tokens are bytes and the template's control tokens."""
    marks, kind = marks_of(template), kind_of(template)
    special = tuple(
        mark
        for mark in marks
        if mark not in ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
    )
    tokenizer = toy_tokenizer(special)
    made, like = make_engine(ROOM, more_special=special)
    refused: list[str] = []
    runner = QuickRunner(like, refused)
    engine = Engine(runner, made.config, Metrics(made.metrics.facts))
    script: list[Script | None] = [None]
    director = Director(lambda: script[0], tokenizer, template, runner)
    engine.start()
    tokens = {"bos_token": kind.bos or "", "eos_token": kind.ends[0]}
    state = toy_state(
        director.direct(engine),
        tokenizer,
        ("my-model",),
        chat_template=ChatTemplate({"default": template}, tokens),
    )
    try:
        with serving(state) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield Again(client, director, refused, script)
    finally:
        engine.stop()
