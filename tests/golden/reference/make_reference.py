"""Makes the reference goldens with transformers on torch: logits.npz and perplexity.json.

    python make_reference.py [--data ../shared/data] [--check]

Logits: tiny random models of every family (tests/support/tiny_models.py) and the trained models
of the data directory, in F32. Perplexities: trained models with F32 weights and with weights
after a round trip through Q8_0 and Q4_0, activations in f32, in windows as `lanewise perplexity`
cuts them. With --check nothing is written: what is committed must be what comes out now.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import tiny_models  # noqa: E402

LOGITS = HERE / "logits.npz"
PERPLEXITY = HERE / "perplexity.json"
PASSAGE = HERE / "passage.txt"

PROMPT_TOKENS = 75
# Beginning, both sides of a sliding window and of KV blocks, end.
POSITIONS = (0, 1, 6, 7, 8, 31, 32, 33, 63, 64, 74)
TRAINED = ("stories260K-hf", "stories3M-hf", "books7M")
TRAINED_POSITIONS = (0, 40, 79)

CONTEXT = 256
# Model, text in the data directory (None: the committed passage), characters of it.
TEXTS = (
    ("books7M", None, None),
    ("books7M", "alice.heldout.txt", 60_000),
    ("stories3M-hf", "tinystories_val_yuninxia.txt", 120_000),
)
KINDS = ("f32", "q8_0", "q4_0")


def load(directory: Path, kind: str = "f32") -> Any:
    """Return the model in f32, its matrices after a round trip through ``kind``."""
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if kind != "f32":
        code = gguf.GGMLQuantizationType[kind.upper()]
        for parameter in model.parameters():
            if parameter.dim() == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.data.numpy(), code), code)
                parameter.data = torch.from_numpy(rounded)
    return model


def forward(model: Any, tokens: list[list[int]]) -> NDArray[np.float32]:
    """Return the logits [sequence, position, vocabulary]."""
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor(tokens)).logits.float().numpy()
    return logits


def all_logits(data: Path | None) -> dict[str, NDArray[Any]]:
    """Return prompts, positions and logits of every model."""
    found: dict[str, NDArray[Any]] = {}

    def add(name: str, model: Any, prompt: list[int], positions: tuple[int, ...]) -> None:
        found[f"{name}/prompt"] = np.array(prompt, np.int32)
        found[f"{name}/positions"] = np.array(positions, np.int32)
        found[f"{name}/logits"] = forward(model, [prompt])[0, list(positions)]

    with tempfile.TemporaryDirectory() as folder:
        for family in tiny_models.FAMILIES:
            directory = tiny_models.write_hf(tiny_models.tiny_model(family), Path(folder, family))
            add(family, load(directory), tiny_models.prompt(PROMPT_TOKENS), POSITIONS)
    if data is None:
        return found
    for name in TRAINED:
        directory = data / "models" / name
        ids = encode(directory, PASSAGE.read_text(encoding="utf-8"))
        prompt = ids[: TRAINED_POSITIONS[-1] + 1]
        add(name, load(directory), prompt, TRAINED_POSITIONS)
    return found


def encode(directory: Path, text: str) -> list[int]:
    """Return the ids of a text behind the model's start token."""
    ids: list[int] = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids
    return ids


def perplexity(model: Any, ids: list[int]) -> tuple[float, int]:
    """Return the perplexity and the tokens scored of ids that begin with the start token."""
    size = CONTEXT - 1
    windows = [ids[:1] + ids[i : i + size] for i in range(1, len(ids), size)]
    losses = []
    for window in windows:
        if len(window) > 1:
            logits = torch.from_numpy(forward(model, [window[:-1]])[0]).double()
            losses.append(
                torch.nn.functional.cross_entropy(
                    logits, torch.tensor(window[1:]), reduction="none"
                ).numpy()
            )
    every = np.concatenate(losses)
    return math.exp(every.mean()), every.size


def all_perplexities(data: Path) -> list[dict[str, Any]]:
    """Return one record for each model and text."""
    records = []
    for name, text, chars in TEXTS:
        directory = data / "models" / name
        path = data / "text" / text if text else PASSAGE
        ids = encode(directory, path.read_text(encoding="utf-8")[:chars])
        record: dict[str, Any] = {"model": name, "text": text, "chars": chars, "context": CONTEXT}
        for kind in KINDS:
            record[kind], record["tokens"] = perplexity(load(directory, kind), ids)
        records.append(record)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()})
    return records


def check(logits: dict[str, NDArray[Any]], records: list[dict[str, Any]]) -> list[str]:
    """Return what differs from the committed goldens."""
    wrong = []
    committed = np.load(LOGITS)
    for name, value in logits.items():
        if name not in committed or committed[name].shape != value.shape:
            wrong.append(f"{name}: not in {LOGITS.name}, or of another shape")
        elif np.abs(committed[name] - value).max() > 1e-5 * np.abs(value).max():
            wrong.append(f"{name}: differs by {np.abs(committed[name] - value).max():.2e}")
    known = {(r["model"], r["text"]): r for r in json.loads(PERPLEXITY.read_text())}
    for record in records:
        old = known.get((record["model"], record["text"]), {})
        for key, value in record.items():
            same = key in old and (
                math.isclose(old[key], value, rel_tol=1e-5)
                if isinstance(value, float)
                else old[key] == value
            )
            if not same:
                wrong.append(f"{record['model']}, {record['text']}, {key}: now {value}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = arguments.data if arguments.data.is_dir() else None
    if data is None and not arguments.check:
        raise SystemExit(f"{arguments.data}: not a directory; the trained models are needed")
    logits = all_logits(data)
    records = all_perplexities(data) if data and not arguments.check else []
    if arguments.check:
        wrong = check(logits, records)
        raise SystemExit("\n".join(wrong) if wrong else 0)
    np.savez_compressed(LOGITS, **logits)
    PERPLEXITY.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
