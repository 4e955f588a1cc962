"""Answers made from a seed, as families write them, and what they mean."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lanewise.text.answers.braced_calls import GEMMA
from lanewise.text.answers.content_tags import ContentTags
from lanewise.text.answers.json_calls import JsonCalls
from lanewise.text.answers.python_calls import PythonCalls
from lanewise.text.answers.sectioned_calls import SectionedCalls
from lanewise.text.answers.tagged_calls import TaggedCalls
from lanewise.text.answers.thinking import ThinkingTags

WORDS = (
    *("so", "I see", "{", '"', "\\", "<", "</", "<|", "|>", "\n", "\n\n", " ", "é", "漢字", "🙂"),
    *("<|channel|>", "<|end|>", "<|message|>", "<|start|>assistant", "to=functions.look", "[ARGS]"),
    *("</param", "</functio", "<parameter", "<arg_key", "</tool_cal", "null", "1", "]]>", "&lt;"),
)
TOOLS = {
    "look": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "size": {"type": "number"},
            "deep": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {"$ref": "#/$defs/place"},
            "nothing": {"type": "null"},
            "either": {"type": ["integer", "string", "null"]},
            "one": {"anyOf": [{"type": "object"}, {"type": "boolean"}]},
            "any": {},
        },
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
    },
    "functions.now": None,
    "write-file_2": {"type": "object", "properties": {"body": {"type": "string"}}},
}


class Token(str):
    """The name of a control token; the same as an ordinary string is text."""


CHANNEL, MESSAGE, CONSTRAIN = Token("<|channel|>"), Token("<|message|>"), Token("<|constrain|>")
START, END, CALL = Token("<|start|>"), Token("<|end|>"), Token("<|call|>")


@dataclass
class Answer:
    """Parts of an answer and their meaning."""

    parts: list[str] = field(default_factory=list)
    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, object]] = field(default_factory=list)


def words(rng: random.Random, most: int = 12) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def value(rng: random.Random, name: str) -> object:
    """A value of a property of ``look`` or ``write-file_2``."""
    if name in ("text", "body"):
        return words(rng)
    nested = {"x": [1, {"y": words(rng), "z": None}], "": {}}
    choices = {
        "count": [0, -7, 10**20],
        "size": [1.5, 2, -0.25e-7],
        "deep": [True, False],
        "tags": [[], ["a", words(rng)], [words(rng)]],
        "where": [{"x": 1.5}, {"x": 2, "more": nested}],
        "nothing": [None],
        "either": [3, None, "three", "a\nb"],
        "one": [{}, nested, True],
        "any": [1, nested, [None], "plain words"],
    }
    return rng.choice(choices[name])


def call(rng: random.Random) -> tuple[str, dict[str, object]]:
    name = rng.choice(list(TOOLS))
    names = list((TOOLS[name] or {"properties": {}})["properties"])
    chosen = rng.sample(names, rng.randrange(len(names) + 1))
    return name, {one: value(rng, one) for one in chosen}


def harmony(rng: random.Random) -> Answer:
    """Messages on channels, then a call, a final message or nothing."""
    answer = Answer()
    reasoning, content = [], []
    for _ in range(rng.randrange(4)):
        channel, said = rng.choice(["analysis", "analysis", "commentary"]), words(rng)
        (reasoning if channel == "analysis" else content).append(said)
        answer.parts += [CHANNEL, channel, MESSAGE, said, END]
        answer.parts += [START, "assistant"]
    for _ in range(rng.randrange(3)):
        name, arguments = call(rng)
        answer.calls.append((name, arguments))
        to = f" to=functions.{name}"
        if rng.random() < 0.5:
            answer.parts += [CHANNEL, f"commentary{to} "]
        else:
            answer.parts += [to, CHANNEL, "commentary"]
        answer.parts += rng.choice([[CONSTRAIN, "json"], [" json"], []])
        answer.parts += [MESSAGE, json.dumps(arguments, ensure_ascii=False)]
        answer.parts += [CALL, START, "assistant"]
    if answer.calls or rng.random() < 0.1:
        del answer.parts[-3:]  # a call ends the answer
    else:
        said = words(rng, 40)
        content.append(said)
        answer.parts += [CHANNEL, "final", MESSAGE, said]
    answer.reasoning = "\n".join(filter(None, reasoning))
    answer.content = "\n".join(filter(None, content))
    return answer


def tagged(rng: random.Random, form: TaggedCalls) -> Answer:
    """Reasoning or none, text or none, calls or none."""
    answer = Answer()
    if rng.random() < 0.5:
        answer.reasoning = words(rng).strip()
        answer.parts.append(f"<think>\n{answer.reasoning}\n</think>\n\n")
    answer.content = f"Well{words(rng)}." if rng.random() < 0.5 else ""
    answer.parts.append(answer.content)
    for i in range(rng.randrange(4)):
        name, arguments = call(rng)
        answer.calls.append((name, arguments))
        answer.parts.append(("\n" if i else "") + written(form, name, arguments))
    return answer


def in_section(rng: random.Random, form: SectionedCalls) -> Answer:
    """Text or none, then a section of calls or none."""
    answer = Answer(content=f"Well{words(rng)}." if rng.random() < 0.5 else "")
    answer.parts.append(answer.content)
    answer.calls = [call(rng) for _ in range(rng.randrange(4))]
    if answer.calls:
        answer.parts.append(section(form, answer.calls))
    return answer


def section(form: SectionedCalls, calls: list[tuple[str, dict[str, object]]]) -> str:
    """Calls as the templates of DeepSeek and Kimi write them."""
    texts = []
    for i, (name, arguments) in enumerate(calls):
        shown = f"functions.{name}:{i}" if form.numbered else name
        body = json.dumps(arguments, ensure_ascii=False)
        head = f"{form.call_begin}{form.before_name}{shown}{form.arguments_tag}"
        texts.append(f"{head}{body}{form.call_end}")
    return form.begin + form.between.join(texts) + form.end


def in_python(rng: random.Random, form: PythonCalls) -> Answer:
    """Text or none, then a list of calls or none, its values in Python's words or JSON's."""
    answer = Answer(content=f"Well{words(rng)}." if rng.random() < 0.5 else "")
    answer.parts.append(answer.content)
    answer.calls = [call(rng) for _ in range(rng.randrange(4))]
    if answer.calls:
        shown = rng.choice((repr, partial(json.dumps, ensure_ascii=False)))
        answer.parts.append(listed(form, answer.calls, shown, rng.choice((", ", ",", " , "))))
    return answer


def listed(
    form: PythonCalls,
    calls: list[tuple[str, dict[str, object]]],
    shown: Callable[[object], str] = repr,
    comma: str = ", ",
) -> str:
    """Calls as LFM2 and OLMo 3 write them."""
    texts = (
        f"{name}({comma.join(f'{key}={shown(one)}' for key, one in arguments.items())})"
        for name, arguments in calls
    )
    between = comma if form.between == ", " else form.between
    return form.begin + between.join(texts).join(form.brackets) + form.end


def with_objects(
    rng: random.Random, form: JsonCalls, thinking: ThinkingTags, content: ContentTags | None
) -> Answer:
    """Reasoning or none, then text between tags or none, or calls in one list."""
    answer = Answer()
    if rng.random() < 0.5:
        answer.reasoning = words(rng).strip()
        answer.parts.append(f"{thinking.begin}{answer.reasoning}{thinking.end}")
    if content is None or rng.random() < 0.5:
        answer.content = f"Well{words(rng)}." if rng.random() < 0.5 else ""
        tags = content is not None and answer.content and rng.random() < 0.7
        label = content.label if content is not None and rng.random() < 0.7 else ""
        shown = f"{label if answer.content else ''}{answer.content}"
        shown = f"{content.begin}{shown}{content.end}" if tags else shown
        answer.parts.append(shown)
        if content is not None:
            return answer
    answer.calls = [call(rng) for _ in range(rng.randrange(4))]
    if answer.calls:
        answer.parts.append(objects(form, answer.calls))
    return answer


def objects(form: JsonCalls, calls: list[tuple[str, dict[str, object]]]) -> str:
    """Calls as lists of JSON."""
    texts = []
    for i, (name, arguments) in enumerate(calls):
        head = form.head.replace("NUMBER", str(i)).replace("KEY", form.arguments)
        head = head.replace("NAME", json.dumps(name))
        texts.append(f"{head}{json.dumps(arguments, ensure_ascii=False)}}}{form.after_call}")
    return form.begin + form.between.join(texts) + form.end


def in_braces(rng: random.Random) -> Answer:
    """Reasoning or none, text or none, calls or none, as Gemma 4 writes them."""
    answer = Answer()
    if rng.random() < 0.5:
        answer.reasoning = words(rng).strip()
        answer.parts.append(f"<|channel>thought\n{answer.reasoning}\n<channel|>")
    answer.content = f"Well{words(rng)}." if rng.random() < 0.5 else ""
    answer.parts.append(answer.content)
    answer.calls = [call(rng) for _ in range(rng.randrange(4))]
    answer.parts += (braced(name, arguments) for name, arguments in answer.calls)
    return answer


def braced(name: str, arguments: dict[str, object]) -> str:
    """A call in braces."""
    return f"{GEMMA.begin}call:{name}{_braced(arguments)}{GEMMA.end}"


def _braced(one: object) -> str:
    if isinstance(one, str):
        return one.join((GEMMA.quote, GEMMA.quote))
    if isinstance(one, dict):
        pairs = (f"{key}:{_braced(one[key])}" for key in sorted(one, key=str.lower))
        return f"{{{','.join(pairs)}}}"
    return f"[{','.join(map(_braced, one))}]" if isinstance(one, list) else json.dumps(one)


def written(form: TaggedCalls, name: str, arguments: dict[str, object]) -> str:
    """A call."""
    text = form.begin
    text += f"\n{name.join(form.around_name)}" if form.around_name[0] else name
    for key, one in arguments.items():
        shown = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        line = "\n" if form.value_lines else ""
        text += form.line + key.join(form.around_key)
        text += form.line if form.around_value[0] else ""
        text += f"{line}{shown}{line}".join(form.around_value)
    ends = (form.function_end, form.end)
    return text + "".join(form.line + end for end in ends if end)
