"""Measures what each candidate for the numeric contract costs.

The decision of that name in the guide has the outcome.

Needs torch, transformers and gguf. The matrix products are emulated in exact float32 arithmetic
(every fused multiply-add rounded once), so the error of a combination rule is that of the rule.

    python numeric_contract.py combination
    python numeric_contract.py outliers
    python numeric_contract.py perplexity MODEL_DIR TEXT [--chars N]
"""

import argparse
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

GROUP = 32  # weights per scale
BIAS = np.float32(12582912.0)  # 1.5 * 2^23, whose bit pattern is 0x4B400000
# Inputs that share a scale, 0 being all of a row; and how many times as large as every other of
# them one must be to be taken out and multiplied in f32, 0 being never.
CODES = {
    "32, outliers": (32, 8),
    "32": (32, 0),
    "128": (128, 0),
    "256": (256, 0),
    "token": (0, 0),
}


def fma(a: F32, b: F32, c: F32) -> F32:
    """Return a * b + c rounded once: the sum is rounded to odd in double, then to single."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: 48 bits
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, total).astype(np.float32)


def coded(x: F32, size: int, outlying: int) -> F32:
    """Return what is left of ``x`` [tokens, k] after int8 codes."""
    size = size or x.shape[1]
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % size)))
    parts = padded.reshape(len(x), -1, size)
    sizes = np.abs(parts)
    two = np.partition(sizes, -2, axis=-1)[..., -2:]
    out = (sizes == two[..., 1:]) & (two[..., 1:] > outlying * two[..., :1])
    if not outlying:
        out = np.zeros_like(out)
    rest = np.where(out, 0, parts)
    largest = np.abs(rest).max(axis=-1, keepdims=True)
    inverse = np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.clip(np.rint(rest * inverse), -127, 127)
    values = np.where(out, parts, codes * (largest / np.float32(127)))
    return values.reshape(padded.shape)[:, : x.shape[1]].astype(np.float32)


def plain(sums: I64, scales: F32, da: F32, per_segment: int) -> F32:
    """acc = fma((float)isum, dw * da, acc) over ``sums`` and ``scales`` [groups, ...]."""
    acc = np.zeros(sums.shape[1:], np.float32)
    for g in range(len(sums)):
        acc = fma(sums[g].astype(np.float32), scales[g] * da[g // per_segment], acc)
    return acc


def prefix(sums: I64, scales: F32, da: F32, per_segment: int) -> F32:
    """Summation by parts inside a segment, the int32 sum never reset, then one fma per segment."""
    acc = np.zeros(sums.shape[1:], np.float32)
    for first in range(0, len(sums), per_segment):
        running = np.zeros(sums.shape[1:], np.int64)
        seg = np.zeros(sums.shape[1:], np.float32)
        last = min(first + per_segment, len(sums))
        for g in range(first, last):
            running = running + sums[g]
            after = scales[g + 1] if g + 1 < last else np.zeros_like(scales[g])
            seg = fma(running.astype(np.float32), scales[g] - after, seg)
        acc = fma(seg, np.broadcast_to(da[first // per_segment], seg.shape), acc)
    return acc


def biased(sums: I64, scales: F32, da: F32, per_segment: int) -> F32:
    """As ``prefix``, multiplying the magic-biased sum; the bias telescopes to BIAS * s_first."""
    acc = np.zeros(sums.shape[1:], np.float32)
    for first in range(0, len(sums), per_segment):
        running = np.zeros(sums.shape[1:], np.int64)
        seg = np.zeros(sums.shape[1:], np.float32)
        differences = np.zeros(sums.shape[1:], np.float32)
        last = min(first + per_segment, len(sums))
        for g in range(first, last):
            running = running + sums[g]
            after = scales[g + 1] if g + 1 < last else np.zeros_like(scales[g])
            step = scales[g] - after
            seg = fma(running.astype(np.float32) + BIAS, step, seg)
            differences = differences + step
        seg = fma(np.broadcast_to(-BIAS, seg.shape), differences, seg)
        acc = fma(seg, np.broadcast_to(da[first // per_segment], seg.shape), acc)
    return acc


def exact(sums: I64, scales: F32, da: F32, per_segment: int) -> tuple[F64, F64]:
    """Return the sum of the terms and the sum of their magnitudes in extended precision."""
    terms = [
        sums[g].astype(np.longdouble) * scales[g].astype(np.longdouble) * da[g // per_segment]
        for g in range(len(sums))
    ]
    return sum(terms), sum(abs(term) for term in terms)


RULES: dict[str, Callable[[I64, F32, F32, int], F32]] = {
    "plain": plain,
    "prefix": prefix,
    "biased": biased,
}


def scale_patterns(rng: np.random.Generator, groups: int, n: int) -> dict[str, F32]:
    """Return weight scales [groups, n], f16 values as files hold them."""
    base = rng.uniform(0.5, 2, (groups, n))
    alternating = base * np.where(np.arange(groups) % 2, 1e-4, 1)[:, None]
    wild = 10.0 ** rng.uniform(-4, 0, (groups, n))
    one_large = np.full((groups, n), 1e-4) * base
    one_large[groups // 2 + 4] *= 1e4  # inside a segment: at its start nothing has been summed yet
    patterns = {
        "like a real layer": base * 0.01,
        "every second one 10^4 smaller": alternating,
        "log-uniform over 10^4": wild,
        "one 10^4 larger": one_large,
    }
    return {name: value.astype(np.float16).astype(np.float32) for name, value in patterns.items()}


def combination_study() -> None:
    """Print the error of each rule against exact arithmetic: rms and worst, over sum |terms|."""
    rng = np.random.default_rng(1)
    groups, n = 128, 20_000
    print(
        f"K = {groups * GROUP}, {n} outputs;"
        " error / sum |terms|: rms | worst; error / |result|: rms"
    )
    for weights, largest in (("int4", 8), ("int8", 127)):
        q = rng.integers(-largest, largest + (weights == "int8"), (groups, n, GROUP), dtype=np.int8)
        x = rng.integers(-127, 128, (groups, 1, GROUP), dtype=np.int8)
        sums = np.einsum("gnk,gmk->gn", q.astype(np.int32), x.astype(np.int32)).astype(np.int64)
        for name, scales in scale_patterns(rng, groups, n).items():
            quiet = sums.copy()  # the hard case: the large groups cancel, only the small ones speak
            quiet[scales > 100 * np.median(scales)] = 0
            for label, data in ((name, sums), (name + ", large groups sum to 0", quiet)):
                if data is quiet and (quiet == sums).all():
                    continue
                report(weights, label, data, scales, rng)
    worst_case()


def worst_case() -> None:
    """Print the bound reached: one segment of one sign, its large-scale group summing to zero."""
    sums = np.full((8, 1, 1), 8 * 127 * GROUP, np.int64)
    sums[4] = 0
    da = np.full(8, 0.011, np.float32)
    worst = dict.fromkeys(RULES, 0.0)
    rng = np.random.default_rng(3)
    for _ in range(3000):
        scales = rng.uniform(1e-4, 2e-4, (8, 1, 1))
        scales[4] = rng.uniform(1, 2)
        scales = scales.astype(np.float16).astype(np.float32)
        total, magnitude = exact(sums, scales, da, 8)
        for name, rule in RULES.items():
            error = rule(sums, scales, da, 8).astype(np.longdouble) - total
            worst[name] = max(worst[name], float(np.abs(error / magnitude).max()))
    print("worst case:", ", ".join(f"{name} {value:.1e}" for name, value in worst.items()))


def report(weights: str, label: str, sums: I64, scales: F32, rng: np.random.Generator) -> None:
    groups = len(sums)
    for per_segment, rule in ((1, "plain"), (8, "prefix"), (groups, "prefix"), (8, "biased")):
        da = rng.uniform(0.005, 0.02, math.ceil(groups / per_segment)).astype(np.float32)
        total, magnitude = exact(sums, scales, da, per_segment)
        error = RULES[rule](sums, scales, da, per_segment).astype(np.longdouble) - total
        relative = np.abs(error) / magnitude
        rms = float(np.sqrt((relative**2).mean()))
        against_result = float(np.sqrt((error**2).mean() / (total**2).mean()))
        segment = "32" if per_segment == 1 else str(min(per_segment * GROUP, groups * GROUP))
        print(
            f"{weights} | {label} | {rule} {segment} | {rms:.1e} |"
            f" {float(relative.max()):.1e} | {against_result:.1e}"
        )


def q4_0(w: F32) -> F32:
    """Return ``w`` after a round trip through Q4_0."""
    kind = gguf.GGMLQuantizationType.Q4_0
    return gguf.dequantize(gguf.quantize(w, kind), kind)


def outlier_rows(rng: np.random.Generator, tokens: int, k: int, count: int, factor: float) -> F32:
    """Return activations [tokens, k] with ``count`` channels ``factor`` times the rest."""
    x = rng.standard_normal((tokens, k)).astype(np.float32)
    channels = rng.choice(k, count, replace=False)
    x[:, channels] *= np.float32(factor)
    return x


def outlier_study() -> None:
    """Print the relative RMS error that int8 activations add to a layer's output."""
    rng = np.random.default_rng(2)
    print("error of the output: against all of it | against what the ordinary channels contribute")
    for k, count in ((2048, 4), (4096, 6), (8192, 8)):
        weights = (rng.standard_normal((1024, k)) / math.sqrt(k)).astype(np.float32)
        rounded = q4_0(weights).astype(np.float64)
        for factor in (1, 20, 100, 300, 1000):
            x = outlier_rows(rng, 64, k, count, factor)
            ordinary = np.where(np.abs(x).max(axis=0) > 5.5, 0, x) if factor > 1 else x
            full, rest = x.astype(np.float64) @ rounded.T, ordinary.astype(np.float64) @ rounded.T
            row = [f"{k}", f"{count} x {factor}"]
            unquantized = np.linalg.norm(x.astype(np.float64) @ (rounded - weights).T)
            row.append(f"Q4_0 {100 * unquantized / np.linalg.norm(full):.2f} %")
            for name, code in CODES.items():
                error = np.linalg.norm(coded(x, *code).astype(np.float64) @ rounded.T - full)
                shares = (100 * error / np.linalg.norm(part) for part in (full, rest))
                row.append(f"{name}: " + " | ".join(f"{share:.2f} %" for share in shares))
            print("  ".join(row))


class QuantizedInput(torch.nn.Module):
    """A linear layer whose input goes through int8 codes; None keeps it f32."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight
        self.code: tuple[int, int] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.code is not None:
            rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()
            x = torch.from_numpy(coded(rows, *self.code)).reshape(x.shape)
        return torch.nn.functional.linear(x, self.weight)


def load(directory: Path, kind: str) -> tuple[Any, list[QuantizedInput]]:
    """Return the model with its matrices after a round trip through ``kind``, and those layers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    layers = []
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            weight = module.weight.detach().numpy()
            if kind != "f32":
                code = gguf.GGMLQuantizationType[kind.upper()]
                weight = gguf.dequantize(gguf.quantize(weight, code), code)
            layer = QuantizedInput(torch.from_numpy(weight.copy()))
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, layer)
            layers.append(layer)
    head = layers[-1].weight  # every model measured here ties its embedding to the head
    model.get_input_embeddings().weight = torch.nn.Parameter(head)
    return model, layers


def plant(model: Any, factor: float, every: int) -> None:
    """Make one input channel in ``every`` of each block's matrices ``factor`` times larger.

    The norm or the up projection is scaled up and the matrices behind it down by a power of two, so
    that in f32 the model computes the same function.
    """
    for block in model.model.layers:
        attention, ffn = block.self_attn, block.mlp
        chosen = slice(every // 3, None, every)
        for norm, readers in (
            (block.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (block.post_attention_layernorm, (ffn.gate_proj, ffn.up_proj)),
        ):
            norm.weight.data[chosen] *= factor
            for reader in readers:
                reader.weight[:, chosen] /= factor
        ffn.up_proj.weight[chosen] *= factor
        ffn.down_proj.weight[:, chosen] /= factor


def losses(model: Any, windows: torch.Tensor) -> F64:
    """Return the loss of every predicted token of ``windows`` [n, 256]."""
    found = []
    with torch.no_grad():
        for batch in windows.split(16):
            logits = model(batch).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none"
            )
            found.append(loss.double().numpy())
    return np.concatenate(found)


def perplexity_study(directory: Path, text: Path, chars: int) -> None:
    """Print perplexity and its change with the codes, paired over the same tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    ids = tokenizer(text.read_text(encoding="utf-8")[:chars])["input_ids"]
    windows = torch.tensor(ids[: len(ids) // 256 * 256]).reshape(-1, 256)
    print(f"{directory.name}, {windows.numel()} tokens")
    plantings = [(1.0, 256), *itertools.product((16.0, 128.0), (256,))]
    for kind, (factor, every) in itertools.product(("f32", "q8_0", "q4_0"), plantings):
        model, layers = load(directory, kind)
        if factor > 1:
            plant(model, factor, every)
        base = losses(model, windows)
        print(f"{kind}, outliers x {factor:g}: f32 activations {math.exp(base.mean()):.4f}", end="")
        for name, code in CODES.items():
            for layer in layers:
                layer.code = code
            change = losses(model, windows) - base
            error = change.std() / math.sqrt(change.size)
            print(f" | {name} {100 * change.mean():+.3f} ± {100 * error:.3f} %", end="", flush=True)
        print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("combination")
    commands.add_parser("outliers")
    perplexity = commands.add_parser("perplexity")
    perplexity.add_argument("model", type=Path)
    perplexity.add_argument("text", type=Path)
    perplexity.add_argument("--chars", type=int, default=60_000)
    arguments = parser.parse_args()
    if arguments.command == "combination":
        combination_study()
    elif arguments.command == "outliers":
        outlier_study()
    else:
        perplexity_study(arguments.model, arguments.text, arguments.chars)


if __name__ == "__main__":
    main()
