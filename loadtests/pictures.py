"""Pictures beside steady decoders: ``python -m loadtests.pictures --url http://127.0.0.1:8000``.

Measured one after another: a picture alone, decoders alone, decoders beside pictures that come one
after the other, and decoders alone again. No two pictures are equal, so none is seen for nothing.
"""

import argparse
import base64
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtests.command import base_parser, positive, print_times, run_plan
from loadtests.decoders import Decoders, run_beside
from loadtests.http_stream import Stream, StreamError, Target, post_stream
from loadtests.report import Times
from loadtests.scenario import Prompts, Scenario


@dataclass(frozen=True, slots=True)
class Plan:
    """How many of each, and for how long."""

    decoders: int
    pictures: int
    height: int
    width: int
    calm_s: float
    decoder_max_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """Times in milliseconds, of a picture from its request to its first token."""

    itl_calm_ms: Times
    itl_beside_ms: Times
    picture_alone_ms: Times
    picture_beside_ms: Times
    itl_p99_ratio: float  # beside pictures / the median alone
    picture_tokens: int  # of the prompt


def bitmap(seed: int, height: int, width: int) -> str:
    """Return a BMP of waves and noise as a data: URL."""
    rng = np.random.default_rng(seed)
    y, x = np.indices((height, width), np.float32)
    wave = 128 + 90 * np.sin(y / rng.uniform(5, 90) + x / rng.uniform(5, 90))
    noise = rng.integers(-20, 20, (height, width, 3))
    rows = np.zeros((height, -(-3 * width // 4) * 4), np.uint8)
    rows[:, : 3 * width] = np.clip(wave[:, :, None] + noise, 0, 255).reshape(height, -1)
    head = struct.pack(
        "<2sIIIIiiHHIIiiII", b"BM", 54 + rows.size, 0, 54, 40, width, height, 1, 24, *(0,) * 6
    )
    return "data:image/bmp;base64," + base64.b64encode(head + rows.tobytes()).decode()


async def measure(target: Target, scenario: Scenario, plan: Plan) -> Report:
    """Run the phases; StreamError if a request fails."""
    prompts = Prompts(scenario.seed)
    await prompts.calibrate(target, scenario)
    chat = replace(target, path=target.path.replace("completions", "chat/completions"))
    seen: list[Stream] = []

    async def picture() -> float:
        url = bitmap(scenario.seed + len(seen), plan.height, plan.width)
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a"}]
        body = scenario.body("") | {
            "max_tokens": 1,
            "messages": [{"role": "user", "content": parts}],
        }
        del body["prompt"]
        seen.append(await post_stream(chat, body, scenario.timeout_s))
        if not seen[-1].chunk_times:
            raise StreamError("a picture had no token")
        return seen[-1].chunk_times[0] - seen[-1].started

    async def pictures() -> list[float]:
        return [await picture() for _ in range(plan.pictures)]

    alone = [await picture() for _ in range(3)][1:]
    longest = replace(scenario, max_tokens=plan.decoder_max_tokens)
    async with Decoders(target, longest, plan.decoders, prompts) as decoders:
        beside, itl = await run_beside(decoders, plan.calm_s, pictures)
    return Report(
        itl_calm_ms=itl.calm,
        itl_beside_ms=itl.beside,
        picture_alone_ms=Times.of(alone),
        picture_beside_ms=Times.of(beside),
        itl_p99_ratio=itl.p99_ratio,
        picture_tokens=seen[0].prompt_tokens or 0,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 if a request failed."""
    options = _parser().parse_args(arguments)
    plan = Plan(
        decoders=options.decoders,
        pictures=options.pictures,
        height=options.height,
        width=options.width,
        calm_s=options.calm,
        decoder_max_tokens=options.decoder_max_tokens,
    )
    report = run_plan(measure, plan, options)
    if report is None:
        return 2
    if options.json:
        return 0
    print_times(
        {
            "ITL of decoders alone": report.itl_calm_ms,
            "ITL beside pictures": report.itl_beside_ms,
            "picture alone": report.picture_alone_ms,
            "picture beside decoders": report.picture_beside_ms,
        }
    )
    print(f"ITL p99 beside pictures / median alone: {report.itl_p99_ratio:.2f}")
    print(f"tokens of a prompt with a picture:      {report.picture_tokens}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = base_parser(
        "python -m loadtests.pictures",
        "Pictures beside steady decoders: what each costs the other.",
    )
    for name, default, what in (
        ("decoders", 8, ""),
        ("pictures", 3, ""),
        ("height", 672, "pixels "),
        ("width", 960, "pixels "),
        ("decoder-max-tokens", 4000, "of each decoder, then another begins "),
    ):
        parser.add_argument(
            f"--{name}", type=positive, default=default, metavar="N", help=f"{what}[%(default)s]"
        )
    parser.add_argument(
        "--calm", type=float, default=10.0, metavar="S", help="decoders alone [%(default)s]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
