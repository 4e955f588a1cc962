"""Counts and models a decode step and a prompt of a model at every level."""

import argparse
import os
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import model

from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.checkpoints.gguf_checkpoint import open_gguf
from lanewise.loading.programs.plain import plain_layers

# Share of the executed instructions that is modelled, from the blocks that execute most. Each
# remaining instruction is charged the average of these.
MODELLED = 0.995

Blocks = Counter[tuple[int, int]]  # executions by address and instructions


@dataclass
class StepResult:
    """Instructions, and cycles by core, of one decode step after the prompt and of the prompt."""

    level: str
    decode: int
    prefill: int
    decode_cycles: dict[str, float] = field(default_factory=dict)
    prefill_cycles: dict[str, float] = field(default_factory=dict)


def describe(checkpoint: Checkpoint, folder: Path) -> tuple[Path, Path]:
    """A checkpoint as one_step.c reads it."""
    c, description, data = checkpoint.config, folder / "model.txt", folder / "model.bin"
    plain = plain_layers(c, "one_step.c cannot compute")
    a, rope = plain.attention, plain.rope
    if rope.factors is not None:
        raise SystemExit(f"{checkpoint.path}: factors of RoPE: one_step.c knows none")
    numbers = [c.n_layers, c.hidden_size, plain.ffn.size, a.n_heads, a.n_kv_heads, a.head_dim]
    numbers += [c.vocab_size, c.context_length, a.window or 0]
    numbers += [int(c.tied_embeddings), int(a.qkv_bias), int(a.qk_norm == "head")]
    lines = [" ".join(map(str, ["config", *numbers, c.rms_norm_eps, rope.theta]))]
    with data.open("wb") as out:
        for t in checkpoint.tensors:
            shape = [int(t.role), t.layer, int(t.type), t.rows, t.cols, t.rope_heads, t.data.nbytes]
            lines.append(" ".join(map(str, ["tensor", *shape])))
            out.write(t.data)
    description.write_text("\n".join(lines) + "\n")
    return description, data


def instructions_of(blocks: Blocks) -> int:
    return sum(n * executions for (_, n), executions in blocks.items())


def cycles_of(core: model.Core, code: model.Code, blocks: Blocks) -> float:
    """The cycles that a core needs for these blocks, each in its steady state."""
    total, covered, chosen = instructions_of(blocks), 0, []
    for block, executions in sorted(blocks.items(), key=lambda b: -b[0][1] * b[1]):
        if covered >= MODELLED * total:
            break
        chosen.append((block, executions))
        covered += block[1] * executions
    each = model.steady_cycles(core, [code.block(*block) for block, _ in chosen])
    cycles = sum(c * executions for c, (_, executions) in zip(each, chosen, strict=True))
    return cycles * total / covered


def bench(program: Path, plugin: Path, options: argparse.Namespace) -> list[StepResult]:
    code, prompt = model.Code(program), options.prompt
    with tempfile.TemporaryDirectory() as folder, open_gguf(options.model) as checkpoint:
        files = describe(checkpoint, Path(folder))

        def executed(level: str, vectors: int, prompt: int, steps: int) -> Blocks:
            what = (*files, level, prompt, steps)
            _, counts = model.run(plugin, model.emulated(vectors), program, *what)
            return Counter({(address, n): times for address, n, times in counts.blocks})

        def one(level: str, vectors: int) -> StepResult:
            runs = [executed(level, vectors, *n) for n in ((0, 0), (prompt, 0), (prompt, 1))]
            prefill, decode = runs[1] - runs[0], runs[2] - runs[1]
            name = f"{level}/{vectors}" if level == "sve" else level
            result = StepResult(name, instructions_of(decode), instructions_of(prefill))
            for core in model.CORES:
                if core.models(level, prompt, vectors):
                    result.decode_cycles[core.name] = cycles_of(core, code, decode)
                    result.prefill_cycles[core.name] = cycles_of(core, code, prefill)
            return result

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            each = [(level, model.VECTORS[0]) for level in model.LEVELS]
            each += [("sve", vectors) for vectors in model.VECTORS[1:]]
            return list(pool.map(lambda run: one(*run), each))


def table(results: list[StepResult], options: argparse.Namespace) -> list[str]:
    if not results:
        return []
    names = [core.name for core in model.CORES]
    lines = ["", f"{options.model.stem}, millions of instructions and modelled cycles:", ""]
    lines += [f"| step | instructions | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for title, count, cycles in (
        (f"decode after {options.prompt} tokens", "decode", "decode_cycles"),
        (f"prompt of {options.prompt}", "prefill", "prefill_cycles"),
    ):
        for r in results:
            of_core = getattr(r, cycles)
            cells = [f"{of_core[n] / 1e6:.3f}" if n in of_core else "" for n in names]
            count_text = f"{getattr(r, count) / 1e6:.3f}"
            lines.append(f"| {title}, {r.level} | {count_text} | {' | '.join(cells)} |")
    return lines
