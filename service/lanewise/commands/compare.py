"""``lanewise compare``: what quantized models cost and what they save, beside their original.

All models score the same windows of one text (see ``lanewise perplexity``). At every position that
has a next token, the original's distribution P and the model's Q give the Kullback-Leibler
divergence ``sum P log(P / Q)`` in nats, whose mean over all positions is reported with its standard
error, and the divergence that one position in a hundred exceeds, and whether both hold the same
token most likely. All are computed in float64 from float32
logits; those of the original wait in a temporary file, so that one model at a time is in memory.

With ``--float-activations`` the original is run twice: first with its activations as they are,
which all are then compared with, and as it is served. A single MODEL will do: its row says what
int8 activations cost it.

With ``--chat`` each model answers forty bundled prompts greedily, through its chat template; with
``--tasks`` a server of each is scored by lm-eval.

With ``--caches`` one model is compared with itself: see ``compare_caches``.

Models that make vectors are compared by those of a text's sentences: see ``compare_vectors``.

A model is on the Pareto front when no other one is as small or smaller and as good or better by
perplexity, and better in one of the two.
"""

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from lanewise.commands import compare_caches, compare_vectors
from lanewise.commands.bench import run_tests
from lanewise.commands.compare_chat import Answers, greedy_answers, with_answers
from lanewise.commands.compare_picture import check_picture, draw
from lanewise.commands.compare_tasks import check_program, task_scores
from lanewise.commands.compared import Compared, print_whole
from lanewise.commands.opening import Opened, open_model
from lanewise.commands.perplexity import (
    CHARS_PER_TOKEN,
    DEFAULT_CONTEXT,
    context_of,
    cut_windows,
    kl_divergences,
    naming,
    negative_log_likelihoods,
    perplexity_of,
    read_text,
    run_group,
)
from lanewise.commands.progress import steps_bar
from lanewise.host import cpu_name, format_size
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Session
from lanewise.settings import BenchSettings, CompareSettings, SettingsError
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.text import BUNDLED, HELD_OUT, documents

SENTENCE_TOKENS = 64  # for each that is compared, so many tokens of a file are read
CHUNK = 512  # tokens of a window in one step
BENCH_CONTEXT = 32  # tokens before those whose decoding is timed

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Text:
    """The windows that are scored, and how they came about."""

    windows: list[list[int]]
    ids: list[int]
    context: int


def run(settings: CompareSettings) -> None:
    """Measure all models, print the table or a JSON object, and draw the picture."""
    models = models_of(settings)
    check_picture(settings.picture)
    check_program(settings.tasks)
    text = text_of(settings)
    if compare_vectors.makes_vectors(models[0]):
        compare_vectors.run(models, settings, text)
        return
    if settings.caches:
        compare_caches.run(models, settings, text)
        return
    if settings.load_as:
        raise SettingsError("--load-as: accepted for models that make vectors, the first does not")
    with tempfile.TemporaryFile(prefix="lanewise-compare-") as logits:
        rows = measure_all(models, settings, text, logits)
    rows = with_front(named(rows))
    pictures = draw(rows, settings.picture) if settings.picture is not None else []
    report = {
        "reference": rows[0].model,
        "models": [asdict(row) for row in rows],
        "file": settings.file or BUNDLED,
        "cpu": cpu_name(),
        "pictures": [str(path) for path in pictures],
    }
    if settings.json:
        print(json.dumps(report))
    else:
        show(rows, pictures)


def text_of(settings: CompareSettings) -> str:
    """The text to score: some of a file, or what the quantizer keeps apart to judge results on."""
    if settings.file is None:
        return "\n\n".join(document.plain for document in documents(HELD_OUT))
    most = max(settings.tokens, settings.sentences * SENTENCE_TOKENS)
    return read_text(settings.file, most * CHARS_PER_TOKEN)


def models_of(settings: CompareSettings) -> list[str]:
    """The models, the original first."""
    models = list(settings.models)
    if settings.model is not None:
        models = [settings.model, *(model for model in models if model != settings.model)]
    alone = settings.float_activations or settings.load_as or settings.caches
    least = 1 if alone else 2
    if len(models) < least:
        accepted = f"{least} or more, the original first"
        raise SettingsError(f"MODEL: {len(models)} given; accepted: {accepted}")
    twice = {model for model in models if models.count(model) > 1}
    if twice:
        raise SettingsError(f"MODEL: {', '.join(sorted(twice))} given twice; accepted: once")
    return models


def measure_all(
    models: Sequence[str], settings: CompareSettings, text: str, logits: IO[bytes]
) -> list[Compared]:
    """Measure one model after the other."""
    longest = settings.context or DEFAULT_CONTEXT
    windows = text_for_all(models, settings, text, longest)
    rows: list[Compared] = []
    expected: Answers | None = None
    for model in models:
        with open_model(replace(settings, model=model), longest) as opened:
            with naming(opened.checkpoint):
                if settings.float_activations and not rows:
                    rows.append(score(opened, windows, logits, None, model, activations="float"))
                row = score(opened, windows, logits, rows[0] if rows else None, model)
            prefill, decode = speeds(settings, opened)
            row = replace(row, prefill=prefill, decode=decode)
            if settings.chat:
                answers = greedy_answers(opened, settings.chat_tokens)
                expected = expected or answers
                row = with_answers(row, expected, answers)
            context = opened.model.config.context_length
        if settings.tasks:  # the server has the memory to itself
            row = replace(row, scores=task_scores(model, context, settings))
        rows.append(row)
    return rows


def text_for_all(models: Sequence[str], settings: CompareSettings, text: str, longest: int) -> Text:
    """Tokenize the text for all models.

    All are opened before one is measured: what cannot be compared is said before minutes go by.
    """
    first: Text | None = None
    for model in models:
        with open_checkpoint(resolve_model(model)) as checkpoint:
            checkpoint.limit_context(longest)
            first = cut_text(checkpoint, settings, text, first)
    assert first is not None
    return first


def cut_text(
    checkpoint: Checkpoint, settings: CompareSettings, text: str, first: Text | None
) -> Text:
    """Tokenize the text; all models must come to the same tokens."""
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
    ids = tokenizer.encode(text, add_bos=False, parse_special=False)[: settings.tokens]
    if first is not None:
        if ids != first.ids:
            raise ModelFileError(
                f"{checkpoint.path}: its tokenizer cuts the text otherwise than the original's;"
                " accepted: models with one tokenizer"
            )
        context_of(first.context, checkpoint.config.context_length)
        return first
    context = context_of(settings.context, checkpoint.config.context_length)
    start = tokenizer.encode("", add_bos=True, parse_special=False)
    windows = cut_windows(ids, start, context)
    if not windows:
        raise SettingsError(f"--file: {settings.file} has {len(ids)} tokens; accepted: at least 2")
    return Text(windows, ids, context)


def score(
    opened: Opened,
    text: Text,
    logits: IO[bytes],
    reference: Compared | None,
    model: str,
    activations: str = "int8",
) -> Compared:
    """Run one model over all windows; without a reference its logits are written, for others."""
    logits.seek(0)
    losses: list[float] = []
    divergences: list[float] = []
    agreed = 0
    chunk = min(CHUNK, text.context)
    with (
        Session(
            opened.model,
            threads=opened.threads,
            blocks=-(-text.context // BLOCK_TOKENS),
            max_batch_tokens=chunk,
            max_batch_logits=chunk,
            kv_type=opened.kv_type,
            float_activations=activations == "float",
        ) as session,
        steps_bar("scoring") as bar,
    ):
        for window in bar.track(text.windows, description=opened.checkpoint.name):
            for _, start, found in run_group(session, [window], chunk):
                targets = window[start + 1 : start + 1 + len(found)]
                losses += negative_log_likelihoods(found, targets)
                if reference is None:
                    logits.write(np.ascontiguousarray(found, "<f4").data)
                    continue
                expected = read_logits(logits, found)
                divergences += kl_divergences(expected, found)
                agreed += int((expected.argmax(axis=1) == found.argmax(axis=1)).sum())
    size, weights = sizes_of(opened.checkpoint)
    row = Compared(
        model=model,
        name=opened.checkpoint.name,
        weights=opened.model.weights,
        bytes=size,
        bits_per_weight=8 * size / weights,
        perplexity=perplexity_of(math.fsum(losses) / len(losses)),
        activations=activations,
    )
    return row if reference is None else with_divergences(row, divergences, agreed)


def with_divergences(row: Compared, divergences: list[float], agreed: int) -> Compared:
    """The row of a model whose positions diverge so from the original's, and so many agree."""
    count = len(divergences)
    return replace(
        row,
        kl=math.fsum(divergences) / count,
        kl_error=float(np.std(divergences) / math.sqrt(count)),
        kl_p99=float(np.quantile(divergences, 0.99)),
        top1=agreed / count,
    )


def read_logits(logits: IO[bytes], like: Floats) -> Floats:
    """Read the original's logits of the positions that ``like`` is for."""
    data = logits.read(like.size * 4)
    if len(data) != like.size * 4:
        raise ModelFileError(
            f"{like.shape[1]} tokens in its vocabulary, other than the original's;"
            " accepted: models with one vocabulary"
        )
    return np.frombuffer(data, "<f4").reshape(like.shape)


def sizes_of(checkpoint: Checkpoint) -> tuple[int, int]:
    """Bytes of the files that hold the weights, and how many weights there are.

    Of a model that sees those of its language model alone: towers are not compared.
    """
    if checkpoint.tower is not None:
        tensors = checkpoint.tensors
        return sum(one.n_bytes for one in tensors), sum(one.rows * one.cols for one in tensors)
    path = checkpoint.path
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    weights = checkpoint.n_weights
    return sum(file.stat().st_size for file in files), weights


def speeds(settings: CompareSettings, opened: Opened) -> tuple[float | None, float | None]:
    """Tokens per second of a prompt and of one sequence's decoding, as ``lanewise bench`` has."""
    limit = opened.model.config.context_length
    prefill = min(settings.prefill, limit)
    decode = min(settings.decode, max(limit - BENCH_CONTEXT, 0))
    bench = BenchSettings(
        prefill=prefill, decode=decode, batch=(1,), context=BENCH_CONTEXT, repeat=settings.repeat
    )
    speed = {test.name[:2]: test.tokens_per_second for test in run_tests(bench, opened)}
    return speed.get("pp"), speed.get("tg")


def named(rows: Sequence[Compared]) -> list[Compared]:
    """Rows whose names differ: the path where the model's name is not its own."""
    models = {row.model: row.name for row in rows}
    names = list(models.values())

    def name(row: Compared) -> str:
        own = row.name if names.count(row.name) == 1 else row.model
        return f"{own}, float activations" if row.activations == "float" else own

    return [replace(row, name=name(row)) for row in rows]


def with_front(rows: Sequence[Compared]) -> list[Compared]:
    """Rows that know whether they are on the Pareto front of size and perplexity.

    Float activations are a reference, nothing to choose.
    """
    served = [row for row in rows if row.activations != "float"]

    def beats(one: Compared, other: Compared) -> bool:
        better = one.bytes <= other.bytes and one.perplexity <= other.perplexity
        return better and (one.bytes, one.perplexity) != (other.bytes, other.perplexity)

    return [
        replace(row, on_front=row in served and not any(beats(other, row) for other in served))
        for row in rows
    ]


def chat_cells(row: Compared, last: Compared) -> list[str]:
    """What a row has of answers, if the last one has any."""
    if last.chat_same is None:
        return []
    if row.chat_same is None:
        return ["", ""]
    return [f"{row.chat_same:.0%}", f"{row.chat_prefix:.1f} of {row.chat_tokens:.1f}"]


def score_cell(row: Compared, task: str) -> str:
    """What a row has of a task."""
    if row.scores is None:
        return ""
    score = row.scores[task]
    error = "" if score.error is None else f" ± {score.error:.4f}"
    return f"{score.metric} {score.value:.4f}{error}"


def show(rows: Sequence[Compared], pictures: Sequence[Path]) -> None:
    """Print the table."""
    answers = ("answers alike", "alike to token") if rows[-1].chat_same is not None else ()
    tasks = tuple(rows[-1].scores or ())
    heads = [
        *("size", "bits", "perplexity", "KL", "p99", "top-1"),
        *("prefill t/s", "decode t/s", *answers, *tasks, "front"),
    ]
    names = [Column(head, no_wrap=True) for head in ("model", "type")]
    right = [Column(head, justify="right", no_wrap=True) for head in heads]
    table = Table(*names, *right, box=None, pad_edge=False)
    for row in rows:
        kl = "" if row.kl is None else f"{row.kl:.5f} ± {row.kl_error:.5f}"
        table.add_row(
            *(row.name, row.weights, format_size(row.bytes), f"{row.bits_per_weight:.3f}"),
            *(f"{row.perplexity:.4f}", kl, "" if row.kl_p99 is None else f"{row.kl_p99:.4f}"),
            "" if row.top1 is None else f"{row.top1:.2%}",
            *("" if speed is None else f"{speed:.1f}" for speed in (row.prefill, row.decode)),
            *chat_cells(row, rows[-1]),
            *(score_cell(row, task) for task in tasks),
            "*" if row.on_front else "",
        )
    console = print_whole(table)
    for path in pictures:
        console.print(f"drawn: {path}", soft_wrap=True, markup=False)
