"""Answers for a model that is told what to say: texts and calls as each family writes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import answer_texts
from lanewise.text.answers import harmony
from lanewise.text.answers.braced_calls import BracedCalls
from lanewise.text.answers.calls import CallFormat
from lanewise.text.answers.json_calls import JsonCalls
from lanewise.text.answers.named_calls import NamedCalls
from lanewise.text.answers.signs import call_format
from lanewise.text.answers.tagged_calls import TaggedCalls

THOUGHT = "I know what to do."
THINKING = ("<think>\n", "<think>")  # at the end of a prompt: the answer begins with a thought


@dataclass(frozen=True)
class Said:
    """An answer before it is written down."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    cut: int | None = None  # tokens after which max_tokens ends it, the first time
    is_once: bool = False  # the calls are made the first time only

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Said":
        """As a script in JSON has it."""
        calls = tuple((name, arguments) for name, arguments in given.get("calls", ()))
        once = bool(given.get("once"))
        return cls(given.get("text", ""), calls, given.get("cut"), once)

    @property
    def as_answer(self) -> dict[str, Any]:
        """As clients of every dialect get it."""
        return {"text": self.text, "calls": [list(one) for one in self.calls]}

    @property
    def without_calls(self) -> "Said":
        """Where no tools are offered."""
        return replace(self, calls=(), text=self.text or "Nothing to do.")


@dataclass(frozen=True)
class Script:
    """What is answered to which prompt: the rule whose words stand last in it."""

    rules: tuple[tuple[str, Said], ...] = ()
    otherwise: Said = field(default=Said("Well."))

    @classmethod
    def of(cls, text: str) -> "Script":
        """A script in JSON: pairs of words and answers."""
        return cls.of_rules(json.loads(text))

    @classmethod
    def of_rules(cls, rules: Sequence[Any]) -> "Script":
        """The same, read."""
        return cls(tuple((words, Said.of(said)) for words, said in rules))

    def answer_to(self, prompt: str) -> Said:
        """The answer to the text of a prompt."""
        found = [(prompt.rfind(words), len(words), said) for words, said in self.rules]
        place, _, said = max(found, key=lambda one: one[:2], default=(-1, 0, self.otherwise))
        return said if place >= 0 else self.otherwise


def written(said: Said, template: str, prompt: str) -> str:
    """An answer as the family of a chat template writes it behind a prompt."""
    if harmony.is_harmony(template):
        return _on_channels(said)
    thought = f"{THOUGHT}\n</think>\n\n" if prompt.endswith(THINKING) else ""
    form = call_format(template)
    calls = _calls(form, said.calls) if said.calls else ""
    gap = "\n" if calls and said.text and not isinstance(form, BracedCalls) else ""
    return f"{thought}{said.text}{gap}{calls}"


def end_of(said: Said, template: str) -> str:
    """The control token that ends an answer, where a family has one for calls; else none."""
    return harmony.CALL if said.calls and harmony.is_harmony(template) else ""


def _on_channels(said: Said) -> str:
    text = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
    if not said.calls:
        return f"{text}<|channel|>final<|message|>{said.text}"
    name, arguments = said.calls[0]
    head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{text}{head}{json.dumps(arguments, ensure_ascii=False)}"


def _calls(form: CallFormat, calls: tuple[tuple[str, dict[str, Any]], ...]) -> str:
    if isinstance(form, JsonCalls):
        return answer_texts.objects(form, list(calls))
    if isinstance(form, TaggedCalls):
        return "\n".join(answer_texts.written(form, *one) for one in calls)
    if isinstance(form, BracedCalls):
        return "".join(answer_texts.braced(*one) for one in calls)
    assert isinstance(form, NamedCalls), f"no test writes calls of {form.name}"
    return "".join(
        f"{form.begin}{name}{form.arguments_tag}{json.dumps(arguments)}"
        for name, arguments in calls
    )
