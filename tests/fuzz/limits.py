"""Mutated files of models, and the most time and memory that one took anywhere.

``python -m tests.fuzz.limits [--count 5000] [--seed 0]`` changes templates, tokenizers and configs,
uses each as a server does, and prints the worst of each kind: of this process, of the one that
workers are forked from, and of those in which tokenizers run. Status 1 if one is over the limits
or an error is no short line.
"""

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.json_mutation import mutate_json
from tests.fuzz.names import module_of

MAX_BYTES, MAX_S = 256 << 20, 5.0
MAX_CHARACTERS = 500
SAFE = 3 << 30  # bytes that this process may have, should it be wrong
HELLO = [{"role": "user", "content": "hi"}]
TEXTS = ("Hello world", "a" * 28 + "c", "ab" * 2000, "\ufdfa" * 400, " " * 3000 + "x", "1" * 3000)
VALUES = ("'a'", "'ab' * 3", "messages", "[1]", "9", "(1, 2)", "'%999d'", "{'a': [messages]}")
FILTERS = (
    *("center(N)", "indent(N)", "tojson(indent=N)", "batch(N) | list", "slice(N) | list"),
    *("replace('a', 'b' * N)", "wordwrap(N)", "format(N)", "join('x' * N)", "string * N"),
    *("list", "upper", "length", "tojson", "reverse", "first", "int"),
)
NUMBERS = ("9", "10**4", "10**7", "10**9", "10**10", "-1", "9**9**6")
FRAMES = (
    *("{{ V }}", "{% set x = V %}{{ x }}", "{% if V %}a{% endif %}", "{{ namespace(a=V).a }}"),
    *("{% for i in V %}b{% endfor %}", "{% filter center(N) %}a{% endfilter %}", "{{ (V)[0:N] }}"),
    *("{% macro f(x=V) %}{{ x }}{% endmacro %}{{ f() }}", "{{ raise_exception(V) }}"),
    *("{% include V %}", "{% autoescape V %}a{% endautoescape %}"),
    "{% for i in range(N) %}{{ V }}{% endfor %}",
)
PATTERNS = (
    "(a+)+b|x",
    "(a|a)*c|x",
    "a+$|b",
    "",
    " ",
    "(((a{9}){9}){9}){9}|b",
    "[",
    r"\p{L}+",
    ".*",
)


@dataclass
class Worst:
    """Of one kind."""

    kind: str
    seconds: float = 0.0
    n_bytes: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)

    def note(self, what: str, seconds: float, n_bytes: int, error: str | None) -> None:
        """One input."""
        self.seconds, self.n_bytes = max(self.seconds, seconds), max(self.n_bytes, n_bytes)
        self.refused += error is not None
        if seconds > MAX_S or n_bytes > MAX_BYTES:
            self.problems.append(f"{seconds:.1f} s, {n_bytes >> 20} MiB: {what[:300]}")
        if error is not None and (len(error) >= MAX_CHARACTERS or not error.isprintable()):
            self.problems.append(f"{len(error)} characters: {error[:300]!r}")

    def line(self, count: int) -> str:
        """What is printed."""
        return (
            f"{self.kind}: {count} inputs, {self.refused} refused, worst {self.seconds:.2f} s and"
            f" {self.n_bytes >> 20} MiB"
        )


def most_memory(pid: int | str = "self") -> int:
    """Bytes that a process has had at most since its memory was last looked at."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@contextmanager
def measured() -> Iterator[Callable[[], tuple[float, int]]]:
    """How long it took, and by how much this process was larger meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")  # what it has had at most begins anew
    before, began = most_memory(), time.perf_counter()
    yield lambda: (time.perf_counter() - began, most_memory() - before)


def template(random: Random) -> str:
    """A template that is made up, or a published one with some of that in it."""
    made = random.choice(FRAMES)
    for _ in range(4):
        value = random.choice(VALUES)
        if random.random() < 0.7:
            value += f" | {random.choice(FILTERS)}"
        if random.random() < 0.5:
            value = f"({value}) {random.choice('*+~%')} {random.choice((*VALUES, 'N'))}"
        made = made.replace("V", value, 1).replace("N", random.choice(NUMBERS))
    if random.random() < 0.3:
        return made
    text = random.choice(published_templates())
    for _ in range(random.randrange(3)):
        begin = random.randrange(len(text))
        text = text[:begin] + text[begin + random.randrange(40) :]
    at = text.find("{%", random.randrange(len(text)))
    return text[: max(0, at)] + made + text[max(0, at) :]


def published_templates() -> list[str]:
    """Those whose rendering is compared with transformers'."""
    folder = Path(__file__).parents[1] / "golden/templates"
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))]


async def try_templates(count: int, random: Random) -> Worst:
    """Check and render each in a sandbox."""
    from lanewise.api.shared.budgets import TextBudgets
    from lanewise.sandbox.pool import uncounted
    from lanewise.sandbox.templates import TemplateService, pack_conversation
    from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
    from toy_tokenizer import toy_tokenizer

    worst, tokenizer = Worst("templates"), toy_tokenizer()
    sandbox = TextBudgets().sandbox(1 << 16, uncounted())
    service = TemplateService(sandbox)
    try:
        for _ in range(count):
            made = ChatTemplate({"default": template(random)})
            error = None
            with measured() as taken:
                try:
                    await service.check(made)
                    packed, _ = pack_conversation(
                        *(tokenizer, made, HELLO, None, {}),
                        add_generation_prompt=True,
                        without_end=False,
                        most_characters=1 << 16,
                    )
                    await service.render(made, packed, client=0)
                except ChatTemplateError as caught:
                    error = str(caught)
                seconds, n_bytes = taken()
            pid = sandbox.zygote_pid
            assert pid is not None
            worst.note(made.source(), seconds, max(n_bytes, most_memory(pid)), error)
    finally:
        await sandbox.close()
    return worst


def tokenizer_text(seeds: Sequence[bytes], random: Random) -> str:
    """A small tokenizer.json with a part or some values replaced."""
    from hostile_tokenizers import HOSTILE, LARGE_TO_LOAD, cut_at, replaced, sequence

    parsed = json.loads(random.choice(seeds))
    way = random.randrange(5)
    if way == 0:
        changes = [changed for changed, _ in HOSTILE.values()]
        parsed |= random.choice([*changes, LARGE_TO_LOAD])
    elif way == 1:
        parsed["pre_tokenizer"] = cut_at(random.choice(PATTERNS))
    elif way == 2:
        content = "ab "[random.randrange(3)] * random.choice((0, 1, 9, 99, 9999))
        step = replaced({"String": random.choice(("a", " ", ""))}, content)
        parsed["normalizer"] = sequence("normalizers", [step] * random.randrange(1, 40))
    text = json.dumps(parsed).encode()
    for _ in range(random.randrange(3)):
        text = mutate_json(text, random)
    return text.decode("utf-8", "replace")


def try_tokenizers(count: int, random: Random, seeds: Sequence[bytes]) -> Worst:
    """Make each and cut texts into tokens with it."""
    from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
    from lanewise.text.tokenizer import Tokenizer
    from lanewise.text.whole_texts import TooLongError, WholeTexts

    worst = Worst("tokenizers")
    for _ in range(count):
        text = tokenizer_text(seeds, random)
        error, slowest = None, 0.0
        files = TokenizerFiles(Path("m"), 400, None, {}, {"tokenizer.json": text})
        with measured() as taken:
            try:
                made = Tokenizer.from_files(files)
                for one in TEXTS:
                    began = time.perf_counter()
                    try:
                        made.encode(one, add_bos=True, parse_special=True)
                    except ModelFileError as caught:
                        error = str(caught)
                    slowest = max(slowest, time.perf_counter() - began)
                WholeTexts(made).encode(TEXTS[:2], 12, "right")
            except (ModelFileError, TooLongError) as caught:
                error = str(caught)
            _, n_bytes = taken()
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        worst.note(text, slowest, max(n_bytes, children), error)
    return worst


def try_configs(count: int, random: Random) -> Worst:
    """Open a directory with each."""
    from model_files import FAMILIES, write_directory

    from lanewise.loading.base.checkpoint import ModelFileError
    from lanewise.loading.checkpoints.opening import open_checkpoint

    worst = Worst("configs")
    with tempfile.TemporaryDirectory() as name:
        folder = write_directory(Path(name), FAMILIES["qwen3"], shards=1)
        config = (folder / "config.json").read_bytes()
        for _ in range(count):
            text = mutate_json(config, random)
            if random.random() < 0.3:
                key = random.choice(list(json.loads(config)))
                odd = random.choice(([0] * 200_000, "\n\x1b[2J" * 9999, 10**4000, {"\x00": 1}))
                text = json.dumps(json.loads(config) | {key: odd}).encode()
            (folder / "config.json").write_bytes(text)
            error = None
            with measured() as taken:
                try:
                    with open_checkpoint(folder):
                        pass
                except ModelFileError as caught:
                    error = str(caught)
                worst.note(text.decode("utf-8", "replace"), *taken(), error)
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Try so many of each kind; 1 if one is over the limits."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.limits", description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="of the three kinds together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    hf = module_of("hf_tokenizer")
    sys.set_int_max_str_digits(0)  # of what is written here
    with tempfile.TemporaryDirectory() as name:
        seeds = [seed.partition(hf.SEPARATOR)[0] for seed in hf.seeds(Path(name))]
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min(SAFE, hard) if hard > 0 else SAFE, hard))
    each, failed = max(1, options.count // 3), 0
    random = Random(options.seed)
    for tried in (
        lambda: asyncio.run(try_templates(each, random)),
        lambda: try_tokenizers(each, random, seeds),
        lambda: try_configs(each, random),
    ):
        worst = tried()
        print(worst.line(each), *worst.problems[:20], sep="\n  ", flush=True)
        failed += bool(worst.problems)
    resource.setrlimit(resource.RLIMIT_AS, (before, hard))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
