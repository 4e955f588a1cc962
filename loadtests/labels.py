"""Labels against written answers: ``python -m loadtests.labels --url http://127.0.0.1:8000``.

The same texts, from several connections: each label's probability from ``/v1/classify``, an answer
that is one of the labels (``structured_outputs.choice``), and one that is JSON with a label (a
schema). All have the same prompt, of which nothing is cached. A few texts are asked about in each
way, then the next, so that what else the machine does falls on all ways alike.
Then some texts' labels are asked one by one with ``echo`` and ``logprobs``, which must give the
same probabilities.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from loadtests.command import base_parser, first_model, positive
from loadtests.http_stream import StreamError, Target
from loadtests.scenario import Prompts

LABELS = (
    *("billing", "delivery", "a technical problem", "praise", "complaint", "cancellation"),
    *("sales", "legal", "press", "job application", "spam", "other"),
)
INSTRUCTION = "Which label fits the text?"
SIZES = (16, 128)  # words of texts, from whose tokens the length of others follows
MAX_ANSWER = 32
WAYS = ("labels", "choice", "json")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and how."""

    texts: int
    tokens: int
    labels: int
    connections: int
    block: int  # texts of a turn
    checked: int


@dataclass(frozen=True, slots=True)
class Report:
    """Texts a second of each way, and how far probabilities are from those asked alone."""

    model: str
    prompt_tokens: float  # of a text with its question
    label_tokens: int  # of all labels
    texts_per_second: dict[str, float]
    answer_tokens: dict[str, float]
    largest_difference: float
    alone_per_second: float  # labels asked alone


class Client:
    """One connection that stays open."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._target = Target.parse(url, "", api_key)
        kind = HTTPSConnection if self._target.tls else HTTPConnection
        self._connection = kind(self._target.host, self._target.port, timeout=600)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """What is answered; StreamError if it is no success."""
        content = json.dumps(body).encode()
        try:
            self._connection.request("POST", path, content, self._headers)
            answer = self._connection.getresponse()
            got = answer.read()
        except (OSError, HTTPException) as error:
            raise StreamError(f"{path}: {error}") from None
        if answer.status != 200:
            raise StreamError(f"{path}: status {answer.status}: {got[:200].decode()}")
        return json.loads(got)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Test:
    """Asks one server about the same texts in several ways."""

    def __init__(self, make: Callable[[], Client], model: str, plan: Plan, seed: int) -> None:
        self._clients = [make() for _ in range(plan.connections)]
        self._pool = ThreadPoolExecutor(plan.connections)
        self._model, self._plan = model, plan
        self._labels = [f" {label}" for label in LABELS[: plan.labels]]
        self._prompts: dict[int, list[int]] = {}
        self.probs: dict[int, list[float]] = {}
        self.label_ids: list[list[int]] = []
        self.n_written = dict.fromkeys(WAYS, 0)
        prompts = Prompts(seed)
        counts = [len(self._ids(prompts.words(size))) for size in SIZES]
        prompts.fit(SIZES, counts)
        self._texts = [prompts.next(plan.tokens) for _ in range(plan.texts)]

    def close(self) -> None:
        """End threads and connections."""
        self._pool.shutdown()
        for client in self._clients:
            client.close()

    @property
    def prompt_tokens(self) -> float:
        """Of a text with its question."""
        return sum(map(len, self._prompts.values())) / len(self._prompts)

    def run(self, way: str, places: Sequence[int]) -> float:
        """Ask about some texts; the seconds that it takes."""
        ask = self._classify if way == "labels" else self._write
        began = time.perf_counter()
        found = list(self._mapped(lambda client, place: ask(client, place, way), places))
        took = time.perf_counter() - began
        if way == "labels":
            for place, one in zip(places, found, strict=True):
                self._prompts[place], self.probs[place] = one["prompt_token_ids"], one["probs"]
            self.label_ids = found[0]["label_token_ids"]
        else:
            self.n_written[way] += sum(found)
        return took

    def alone(self, n_texts: int) -> tuple[float, float]:
        """The largest difference of probabilities asked alone, and labels a second."""
        asked = [(place, label) for place in range(n_texts) for label in self.label_ids]
        began = time.perf_counter()
        sums = list(self._mapped(self._echo, asked))
        took = time.perf_counter() - began
        largest, count = 0.0, len(self.label_ids)
        for place in range(n_texts):
            mine = sums[place * count : (place + 1) * count]
            weights = [math.exp(one - max(mine)) for one in mine]
            shares = [one / math.fsum(weights) for one in weights]
            pairs = zip(shares, self.probs[place], strict=True)
            largest = max(largest, *(abs(one - other) for one, other in pairs))
        return largest, len(asked) / took

    def _ids(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text}
        tokens: list[int] = self._clients[0].post("/tokenize", body)["tokens"]
        return tokens

    def _classify(self, client: Client, place: int, way: str) -> Any:
        body = {
            "model": self._model,
            "input": self._texts[place],
            "labels": self._labels,
            "instruction": INSTRUCTION,
            "return_token_ids": True,
            "cache_salt": way,
        }
        return client.post("/v1/classify", body)["data"][0]

    def _write(self, client: Client, place: int, way: str) -> int:
        form: dict[str, Any] = {"choice": self._labels}
        if way == "json":
            label = {"type": "string", "enum": [one.strip() for one in self._labels]}
            properties = {"label": label}
            form = {"json": {"type": "object", "properties": properties, "required": ["label"]}}
        body = {
            "model": self._model,
            "prompt": self._prompts[place],
            "max_tokens": MAX_ANSWER,
            "temperature": 0,
            "structured_outputs": form,
            "cache_salt": way,
        }
        return int(client.post("/v1/completions", body)["usage"]["completion_tokens"])

    def _echo(self, client: Client, asked: tuple[int, list[int]]) -> float:
        place, label = asked
        body = {
            "model": self._model,
            "prompt": self._prompts[place] + label,
            "max_tokens": 0,
            "echo": True,
            "logprobs": 0,
        }
        logprobs = client.post("/v1/completions", body)["choices"][0]["logprobs"]
        return math.fsum(logprobs["token_logprobs"][-len(label) :])

    def _mapped(self, ask: Callable[[Client, Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """What asking gives, in order; each connection asks for the next when it has an answer."""
        free = list(self._clients)

        def one(item: Any) -> Any:
            client = free.pop()
            try:
                return ask(client, item)
            finally:
                free.append(client)

        return self._pool.map(one, items)


def measure(test: Test, model: str, plan: Plan) -> Report:
    """All texts in all ways, and the check; StreamError if a request fails."""
    spent = dict.fromkeys(WAYS, 0.0)
    for begin in range(0, plan.texts, plan.block):
        places = range(begin, min(begin + plan.block, plan.texts))
        for way in WAYS:
            spent[way] += test.run(way, places)
    largest, alone = test.alone(min(plan.checked, plan.texts))
    return Report(
        model=model,
        prompt_tokens=test.prompt_tokens,
        label_tokens=sum(map(len, test.label_ids)),
        texts_per_second={way: plan.texts / seconds for way, seconds in spent.items()},
        answer_tokens={way: test.n_written[way] / plan.texts for way in WAYS[1:]},
        largest_difference=largest,
        alone_per_second=alone,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 if a request failed, 1 if a probability is not that asked alone."""
    options = _parser().parse_args(arguments)
    api_key = os.environ.get("OPENAI_API_KEY")
    plan = Plan(
        *(options.texts, options.tokens, options.labels),
        *(options.connections, options.block, options.check),
    )
    try:
        model = first_model(options.url, api_key)
        with closing(Test(lambda: Client(options.url, api_key), model, plan, options.seed)) as test:
            report = measure(test, model, plan)
    except (ValueError, StreamError) as error:
        print(f"loadtests: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(report), indent=2) if options.json else _table(report, plan))
    return 0 if report.largest_difference <= options.most else 1


def _table(report: Report, plan: Plan) -> str:
    lines = [
        f"{report.model}: {plan.texts} texts, {report.prompt_tokens:.0f} tokens with the question,"
        f" {plan.labels} labels of {report.label_tokens} tokens, {plan.connections} at a time"
    ]
    by_way = report.texts_per_second
    for way, found in by_way.items():
        tokens = f", {report.answer_tokens[way]:.1f} tokens" if way in report.answer_tokens else ""
        lines.append(f"{way:7} {found:.2f} texts/s: labels {by_way['labels'] / found:.2f}{tokens}")
    lines.append(f"labels asked alone: {report.alone_per_second / plan.labels:.2f} texts/s")
    lines.append(f"largest difference of a probability: {report.largest_difference:.3g}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = base_parser(
        "python -m loadtests.labels",
        "Probabilities of labels against answers that are one of them, and each label alone.",
    )
    for name, default, what in (
        ("--texts", 500, ""),
        ("--tokens", 200, "of a text "),
        ("--labels", len(LABELS), ""),
        ("--connections", 4, ""),
        ("--block", 20, "texts of a turn "),
        ("--check", 50, "texts whose labels are asked alone "),
    ):
        parser.add_argument(
            name, type=positive, default=default, metavar="N", help=f"{what}[%(default)s]"
        )
    parser.add_argument(
        "--most", type=float, default=1e-6, help="difference that is no error [%(default)s]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
