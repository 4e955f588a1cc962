"""Texts for vectors: ``python -m loadtests.embeddings --url http://127.0.0.1:8000``.

One client asks for the vectors of batches of texts, each batch after the other, for some seconds at
each length and size. With ``--chat-url`` the server there writes streams meanwhile, and what is
measured is how much longer they wait for their next token: alone, beside ``--texts`` texts, and
alone again.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from loadtests.command import base_parser, first_model, positive, positives, print_times
from loadtests.decoders import Decoders, gaps
from loadtests.http_stream import StreamError, Target
from loadtests.report import Times, percentile
from loadtests.scenario import Prompts, Scenario

SIZES, OF_EACH = (8, 32), 8  # words of texts, from whose tokens the length of others follows


@dataclass(frozen=True, slots=True)
class Cell:
    """What one length and size of batches came to; times are of a whole request."""

    tokens: float  # of a text, as the server counts
    batch: int
    requests: int
    texts_per_second: float
    tokens_per_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Beside:
    """Times between tokens of streams, alone and beside texts, in milliseconds."""

    itl_calm_ms: Times
    itl_beside_ms: Times
    itl_p99_ratio: float  # beside / alone
    texts: int
    texts_per_second: float


class Client:
    """One connection that stays open to a server that makes vectors."""

    def __init__(self, url: str, model: str, api_key: str | None) -> None:
        self.target = Target.parse(url, "embeddings", api_key)
        kind = HTTPSConnection if self.target.tls else HTTPConnection
        self._connection = kind(self.target.host, self.target.port, timeout=600)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._model = model

    def ask(self, texts: Sequence[str]) -> int:
        """Have vectors made of texts; return how many tokens they had, StreamError if it fails."""
        body = {"model": self._model, "input": list(texts), "encoding_format": "base64"}
        try:
            self._connection.request(
                "POST", self.target.path, json.dumps(body).encode(), self._headers
            )
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            raise StreamError(f"{self.target.url(self.target.path)}: {error}") from None
        if answer.status != 200:
            raise StreamError(f"status {answer.status}: {content[:200].decode(errors='replace')}")
        value: dict[str, Any] = json.loads(content)
        if len(value["data"]) != len(texts):
            raise StreamError(f"{len(value['data'])} vectors for {len(texts)} texts")
        return int(value["usage"]["prompt_tokens"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def texts_for(client: Client, seed: int) -> Prompts:
    """Texts of a length in tokens, calibrated by the server's own count."""
    prompts = Prompts(seed)
    counts = [client.ask([prompts.words(size) for _ in range(OF_EACH)]) for size in SIZES]
    prompts.fit(SIZES, [count / OF_EACH for count in counts])
    return prompts


def measure_cell(client: Client, prompts: Prompts, tokens: int, batch: int, seconds: float) -> Cell:
    """Ask for batches for so long, after one that is not counted; at least three."""
    client.ask([prompts.next(tokens) for _ in range(batch)])
    times: list[float] = []
    n_tokens = 0
    while len(times) < 3 or sum(times) < seconds:
        texts = [prompts.next(tokens) for _ in range(batch)]
        began = time.perf_counter()
        n_tokens += client.ask(texts)
        times.append(time.perf_counter() - began)
    took, count = sum(times), batch * len(times)
    ordered = sorted(1000 * one for one in times)
    return Cell(
        tokens=n_tokens / count,
        batch=batch,
        requests=len(times),
        texts_per_second=count / took,
        tokens_per_second=n_tokens / took,
        p50_ms=percentile(ordered, 50) or 0.0,
        p99_ms=percentile(ordered, 99) or 0.0,
    )


@dataclass(frozen=True, slots=True)
class BesidePlan:
    """How many streams and texts, and how the texts come."""

    streams: int
    texts: int
    tokens: int
    batch: int
    connections: int
    calm_s: float


async def measure_beside(
    make: Callable[[], Client], prompts: Prompts, chat: Target, scenario: Scenario, plan: BesidePlan
) -> Beside:
    """Streams alone, beside texts, and alone again; StreamError if a request fails."""
    batches = iter(  # of a list: threads may share it
        [
            [prompts.next(plan.tokens) for _ in range(min(plan.batch, plan.texts - first))]
            for first in range(0, plan.texts, plan.batch)
        ]
    )

    def send() -> None:
        with closing(make()) as client:
            for batch in batches:
                client.ask(batch)

    async with Decoders(chat, scenario, plan.streams) as decoders:
        calm = time.perf_counter()
        await asyncio.sleep(plan.calm_s)
        begin = time.perf_counter()
        await asyncio.gather(*(asyncio.to_thread(send) for _ in range(plan.connections)))
        end = time.perf_counter()
        decoders.check()
        calm_again = time.perf_counter()
        await asyncio.sleep(plan.calm_s)
        last = time.perf_counter()
        decoders.check()
    alone = Times.of(gaps(decoders.streams, calm, begin) + gaps(decoders.streams, calm_again, last))
    beside = Times.of(gaps(decoders.streams, begin, end))
    return Beside(
        itl_calm_ms=alone,
        itl_beside_ms=beside,
        itl_p99_ratio=(beside.p99 or 0) / (alone.p99 or 1),
        texts=plan.texts,
        texts_per_second=plan.texts / (end - begin),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 if a request failed."""
    options = _parser().parse_args(arguments)
    api_key = os.environ.get("OPENAI_API_KEY")
    try:
        model = first_model(options.url, api_key)
        with closing(Client(options.url, model, api_key)) as client:
            prompts = texts_for(client, options.seed)
            if options.chat_url is not None:
                _show_beside(_beside(options, model, prompts, api_key), options)
                return 0
            cells = [
                measure_cell(client, prompts, tokens, batch, options.seconds)
                for tokens in options.tokens
                for batch in options.batches
            ]
    except (ValueError, StreamError) as error:
        print(f"loadtests: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"url": options.url, "cells": [asdict(cell) for cell in cells]}, indent=2))
        return 0
    for cell in cells:
        print(
            f"{cell.tokens:6.1f} tokens, {cell.batch:4} at a time: {cell.texts_per_second:8.1f}"
            f" texts/s {cell.tokens_per_second:9.0f} tokens/s  p50 {cell.p50_ms:8.2f}"
            f"  p99 {cell.p99_ms:8.2f} ms"
        )
    return 0


def _beside(
    options: argparse.Namespace, model: str, prompts: Prompts, api_key: str | None
) -> Beside:
    def make() -> Client:
        return Client(options.url, model, api_key)

    plan = BesidePlan(
        streams=options.streams,
        texts=options.texts,
        tokens=options.tokens[0],
        batch=options.batches[-1],
        connections=options.connections,
        calm_s=options.calm,
    )
    scenario = Scenario(
        model=first_model(options.chat_url, api_key),
        max_tokens=options.stream_tokens,
        chat=True,
        seed=options.seed,
    )
    chat = Target.parse(options.chat_url, scenario.path, api_key)
    return asyncio.run(measure_beside(make, prompts, chat, scenario, plan))


def _show_beside(report: Beside, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(asdict(report), indent=2))
        return
    print_times({"ITL alone": report.itl_calm_ms, "ITL beside texts": report.itl_beside_ms})
    print(f"ITL p99 beside texts / alone: {report.itl_p99_ratio:.2f}")
    print(f"{report.texts} texts, {report.texts_per_second:.1f} a second")


def _parser() -> argparse.ArgumentParser:
    parser = base_parser(
        "python -m loadtests.embeddings",
        "Vectors of texts by their length and number, or beside the streams of a chat server.",
    )
    numbers: dict[str, Any] = {"type": positives, "metavar": "N,…"}
    parser.add_argument(
        "--tokens", default=[16, 128, 512], help="of a text [16,128,512]", **numbers
    )
    parser.add_argument(
        "--batches", default=[1, 8, 64], help="texts of a request [1,8,64]", **numbers
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each [%(default)s]")
    parser.add_argument("--chat-url", metavar="URL", help="a chat server on the same machine")
    beside = parser.add_argument_group("with --chat-url: the first length, the last number")
    beside.add_argument("--streams", type=positive, default=8, metavar="N", help="[%(default)s]")
    beside.add_argument("--texts", type=positive, default=10000, metavar="N", help="[%(default)s]")
    beside.add_argument("--connections", type=positive, default=4, help="[%(default)s]")
    beside.add_argument("--calm", type=float, default=8.0, help="s of streams alone [%(default)s]")
    beside.add_argument(
        "--stream-tokens", type=positive, default=4000, help="of each, then another [%(default)s]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
