"""What coding agents have sent, kept small, and how it is sent again."""

import json
import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "clients" / "agents" / "recorded"
# What differs each time: names of answers and calls, when they were made, pings until there is one.
NAMES = re.compile(r"\b[0-9a-f]{24,32}\b|(?<=_)[0-9a-f]{24,32}\b")
SHORT_NAMES = re.compile(r'("(?:call_)?id": ?)"[A-Za-z0-9]{9}"')
MOMENTS = re.compile(r'("(?:created|created_at|completed_at)": ?)[0-9]+')
PINGS = re.compile(r'event: ping\ndata: \{"type": ?"ping"\}\n\n|: [a-z-]+\n\n')
LONGEST = 160  # characters of a text that is kept whole: what agents tell models is theirs
KEPT_HEADERS = ("anthropic-beta", "anthropic-version", "accept", "content-type", "user-agent")


@dataclass(frozen=True)
class Recorded:
    """A request as an agent sent it, and what came of it."""

    method: str
    path: str  # with its query
    headers: Mapping[str, str]
    body: str
    status: int
    rules: list[Any]  # of the script that was in force
    prompts: Mapping[str, list[str]] = field(default_factory=dict)  # by the name of a template
    answers: Mapping[str, str] = field(default_factory=dict)  # the same, as they are without names


def shortened(value: Any) -> Any:
    """JSON whose long texts have only their beginnings."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST]
    if isinstance(value, list):
        return [shortened(one) for one in value]
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    return value


def cleaned(body: str, places: Mapping[str, str]) -> str:
    """A body without this machine's paths and without long texts."""
    for place, name in places.items():
        body = body.replace(place, name)
    if not body:
        return body
    return json.dumps(shortened(json.loads(body)), ensure_ascii=False, separators=(",", ":"))


def recorded(
    turns: list[tuple[dict[str, Any], list[Any]]], places: Mapping[str, str]
) -> list[Recorded]:
    """What is kept of requests, each with the rules of the script by which it was answered."""
    kept = []
    for one, rules in turns:
        headers = {name: one["headers"][name] for name in KEPT_HEADERS if name in one["headers"]}
        path = f"{one['path']}?{one['query']}" if one["query"] else one["path"]
        body = cleaned(one["asked"], places)
        meant = json.loads(cleaned(json.dumps(rules), places))
        kept.append(Recorded(one["method"], path, headers, body, one["status"], meant))
    return kept


def write(path: Path, recorded: list[Recorded]) -> None:
    """Keep a conversation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(vars(one), ensure_ascii=False) + "\n" for one in recorded)
    path.write_bytes(lzma.compress(lines.encode()))


def read(path: Path) -> Iterator[Recorded]:
    """The requests of a conversation, in their order."""
    for line in lzma.decompress(path.read_bytes()).decode().splitlines():
        yield Recorded(**json.loads(line))


def nameless(answered: str) -> str:
    """All bytes of an answer but those that differ each time."""
    answered = SHORT_NAMES.sub(r'\1"NAME"', NAMES.sub("NAME", answered))
    return PINGS.sub("", MOMENTS.sub(r"\g<1>0", answered))


def answer_of(answered: str) -> dict[str, Any]:
    """The text and the calls of an answer of any dialect, streamed or whole."""
    events = re.findall(r"^data: (\{.*\})$", answered, re.MULTILINE)
    text, calls = "", []
    for event in map(json.loads, events or [answered]):
        more, found = _of_event(event)
        text += more
        for name, arguments in found:
            if name:
                calls.append([name, arguments])
            elif arguments:
                calls[-1][1] += arguments
    return {"text": text.strip(), "calls": [[name, json.loads(one or "{}")] for name, one in calls]}


def _of_event(event: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """The text of an event and its calls: a name begins one, without a name it goes on."""
    kind = event.get("type", "")
    if kind == "response.completed":
        items = event["response"]["output"]
        parts = [part for item in items for part in item.get("content") or ()]
        text = "".join(part["text"] for part in parts if part["type"] == "output_text")
        return text, [(i["name"], i["arguments"]) for i in items if i["type"] == "function_call"]
    if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
        return "", [(event["content_block"]["name"], "")]
    if kind == "content_block_delta":
        delta = event["delta"]
        return delta.get("text", ""), [("", delta.get("partial_json", ""))]
    if kind == "message":
        blocks = event["content"]
        uses = [(b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"]
        return "".join(block.get("text", "") for block in blocks), uses
    if not event.get("choices"):
        return "", []
    choice = event["choices"][0]
    message = choice.get("delta") or choice.get("message") or {}
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content") or "", [(f.get("name", ""), f["arguments"]) for f in functions]
