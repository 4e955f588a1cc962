"""A table of what quantized models lose, calibrated and not, through the commands users run.

For every model and format: the model is quantized without a text, and on each of the texts given
with ``--calibrate``; all results are compared with the original on each text of ``--judge``. A cell
is one (model, format, calibration text, judging text). The exit status is 1 if any calibrated
result diverges more than the uncalibrated one beyond twice the error of the measurement.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMATS = "q4_0,q4_1,q5_0,iq4_nl,mxfp4,cb4,cb3,cb2"  # t2 is never without a text
LANEWISE = (sys.executable, "-m", "lanewise")


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean Kullback-Leibler divergence from the original in nats, and its standard error."""

    kl: float
    error: float


@dataclass(frozen=True, slots=True)
class Row:
    """A model in a format on one judging text: without calibration, and on each text."""

    model: str
    format: str
    judge: str
    bits: float
    without: Loss
    on: dict[str, Loss]

    def worse(self) -> list[str]:
        """Names of the calibration texts that made it worse than without."""
        return [
            name
            for name, loss in self.on.items()
            if loss.kl > self.without.kl + 2 * (loss.error + self.without.error)
        ]

    def markdown(self) -> str:
        """The row of a table."""
        cells = [f"{self.without.kl:.4f}"]
        worse = self.worse()
        cells += [f"{loss.kl:.4f}{' worse' if n in worse else ''}" for n, loss in self.on.items()]
        return f"| {self.model} | {self.format} | {self.bits:.2f} | {self.judge} | " + " | ".join(
            [*cells, ""]
        )


def quantized(model: str, kind: str, text: str, args: argparse.Namespace, folder: Path) -> Path:
    """Quantize a model; return the directory."""
    output = folder / f"{Path(model).stem}-{kind}-{Path(text).stem}"
    if not output.exists():
        command = [*LANEWISE, "quantize", model, "--format", kind, "--calibrate", text]
        command += ["--head", args.head, "--calibration-tokens", str(args.tokens)]
        subprocess.run(
            [*command, "--check-tokens", "0", "--output", str(output)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return output


def compared(model: str, others: Sequence[Path], judge: str, tokens: int) -> list[dict[str, Any]]:
    """Compare models with the original on a text; return what ``compare`` says of each."""
    command = [*LANEWISE, "compare", model, *map(str, others), "--file", judge, "--json"]
    command += ["--tokens", str(tokens), "--prefill", "0", "--decode", "0"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    models: list[dict[str, Any]] = json.loads(done.stdout)["models"][1:]
    return models


def rows(model: str, kind: str, args: argparse.Namespace, folder: Path) -> list[Row]:
    """Quantize and compare one model in one format."""
    made = [quantized(model, kind, text, args, folder) for text in ("none", *args.calibrate)]
    found = []
    for judge in args.judge:
        said = compared(model, made, judge, args.judge_tokens)
        losses = [Loss(one["kl"], one["kl_error"]) for one in said]
        names = [Path(text).stem for text in args.calibrate]
        on = dict(zip(names, losses[1:], strict=True))
        bits = said[0]["bits_per_weight"]
        found.append(Row(Path(model).stem, kind, Path(judge).stem, bits, losses[0], on))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if calibration made something worse."""
    parser = argparse.ArgumentParser(prog="loadtests.calibration", description=__doc__)
    parser.add_argument("models", nargs="+", help="originals, as `lanewise quantize` has them")
    parser.add_argument("--formats", default=FORMATS, help="separated by commas")
    parser.add_argument("--head", default="q8_0", help="type of embedding and head")
    parser.add_argument("--calibrate", nargs="+", default=["bundled"], help="texts")
    parser.add_argument("--judge", nargs="+", required=True, help="other texts")
    parser.add_argument("--tokens", type=int, default=8192, help="of each calibration text")
    parser.add_argument("--judge-tokens", type=int, default=8192, help="of each judging text")
    parser.add_argument("--keep", type=Path, help="directory for the models; one that goes if none")
    args = parser.parse_args(arguments)
    names = [Path(text).stem for text in args.calibrate]
    print("| model | format | bits | judged on | uncalibrated | " + " | ".join([*names, ""]))
    print("|---" * (5 + len(names)) + "|")
    table: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for model in args.models:
            for kind in args.formats.split(","):
                for row in rows(model, kind, args, folder):
                    print(row.markdown(), flush=True)
                    table.append(row)
    worse = sum(len(row.worse()) for row in table)
    cells = sum(len(row.on) for row in table)
    print(f"\n{cells} cells, {worse} of them worse calibrated")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
