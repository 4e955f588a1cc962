"""How far single inputs of a model's matrices stand out: what makes int8 activations cost more.

A short text is run, and each input of each product compared with the mean size of all of its kind
in the same layer. Inputs that stand out share a scale with others, which then keep fewer bits.
"""

from dataclasses import dataclass
from pathlib import Path

from lanewise.commands.perplexity import naming
from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Batch, InputStats, Model, Session
from lanewise.runtime.model import resolve_kv_type
from lanewise.text.tokenizer import Tokenizer

TOKENS = 256
CHUNK = 64  # tokens in one step, so that the logits of large vocabularies stay small

# Times the mean. Models of 0.3 to 7 million weights, which int8 activations cost nothing, come to 6
# to 21 where inputs are normalized, and to 12 to 38 and 50 to 540 for the other two, which are sums
# over tokens and products of two numbers; SmolLM2-135M to 48 to 170, 55 and 25,000.
UNUSUAL = {"qkv": 40, "attn_output": 100, "gate_up": 40, "down": 2000, "head": 40}

INPUTS_OF = {
    "qkv": "Q, K and V",
    "attn_output": "attention output",
    "gate_up": "gate and up",
    "down": "down",
    "head": "head",
}

TEXT = """\
The harbour was empty when the last ferry came in. Two men tied it up, looked at the sky and went \
home without a word; nobody else had crossed that day. In the office above the quay a clerk wrote \
the numbers into a book: 14 passengers in the morning, 9 at noon, none in the evening. She added \
them up twice, closed the book and put it back on its shelf beside those of 1987 and 1988.

# Sorting words by how often they appear
def most_common(words, count=10):
    seen = {}
    for word in words:
        seen[word.lower()] = seen.get(word.lower(), 0) + 1
    return sorted(seen.items(), key=lambda item: -item[1])[:count]

Question: why does ice float on water?
Answer: Because water expands when it freezes. Its molecules arrange themselves in a lattice that \
takes about 9 % more room than the liquid, so that a block of ice weighs less than the water whose \
place it takes. Most other substances shrink, and their solid form sinks.
"""


@dataclass(frozen=True, slots=True)
class Outliers:
    """The inputs of one kind of matrices in all layers, and the layer where one stands out most."""

    inputs_of: str
    layer: int | None  # None for the head
    input: int
    largest: float  # size of that input
    mean: float  # size of this kind of inputs in that layer
    times_mean: float
    outlier_groups: float  # share of 32 inputs of which one is 8 times larger than all others
    unusual: bool


def find_outliers(path: Path, threads: int) -> list[Outliers]:
    """Run the text and report every kind of inputs; what experts' down is given is not seen."""
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, threads=threads) as model,
        naming(checkpoint),
    ):
        rows = [row for row in observe(checkpoint, model, threads) if row.groups]
    kinds = list(dict.fromkeys(row.operation for row in rows))
    return [summary([row for row in rows if row.operation == kind]) for kind in kinds]


def observe(checkpoint: Checkpoint, model: Model, threads: int) -> list[InputStats]:
    """The inputs that the text leads to."""
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
    count = min(TOKENS, model.config.context_length)
    ids = tokenizer.encode(TEXT, add_bos=True, parse_special=False)[:count]
    blocks = list(range(-(-len(ids) // BLOCK_TOKENS)))
    with Session(
        model,
        threads=threads,
        blocks=len(blocks),
        max_batch_tokens=CHUNK,
        max_batch_logits=CHUNK,
        kv_type=resolve_kv_type("auto", model.weights),
        observe_inputs=True,
    ) as session:
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            # all with logits: the last layer computes no other rows
            session.step(Batch(part, [0, len(part)], [start], [blocks], range(len(part))))
        return session.inputs()


def summary(layers: list[InputStats]) -> Outliers:
    """One kind of inputs over its layers."""
    worst = max(layers, key=_times_mean)
    return Outliers(
        inputs_of=INPUTS_OF[worst.operation],
        layer=None if worst.operation == "head" else worst.layer,
        input=worst.largest_input,
        largest=worst.largest,
        mean=worst.mean,
        times_mean=_times_mean(worst),
        outlier_groups=sum(r.outlier_groups for r in layers) / sum(r.groups for r in layers),
        unusual=_times_mean(worst) > UNUSUAL[worst.operation],
    )


def _times_mean(row: InputStats) -> float:
    return row.largest / row.mean if row.mean > 0 else 0.0
