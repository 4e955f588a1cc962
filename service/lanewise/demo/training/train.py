"""Trains the bundled model on the token ids that prepare.py wrote.

    python train.py DATA_DIR CHECKPOINT_DIR [--steps 2000]

Needs torch and transformers. One step is 4096 tokens; 2000 steps take about 40 minutes on two
x86-64 cores with bf16. CHECKPOINT_DIR becomes a Hugging Face directory (weights and config).
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result, beside the data and torch's version."""

    steps: int = 2000
    seed: int = 7
    tokens_per_step: int = 4096
    window: int = 256
    long_window: int = 512  # the context length, for the last part of the training
    long_part: float = 0.15
    learning_rate: float = 3e-3
    warmup_steps: int = 150
    decay_from: float = 0.4  # constant before, linear to a hundredth of itself after
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0


def build_model(vocab_size: int, context: int) -> LlamaForCausalLM:
    """Return the untrained model: every size a multiple of 256 or a head of 32."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    residual = 0.02 / math.sqrt(2 * config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(parameter, 0, residual if into_residual else 0.02)
    return model


def build_optimizer(model: LlamaForCausalLM, settings: Settings) -> torch.optim.AdamW:
    """Return AdamW with weight decay on the matrices only."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas)


def learning_rate(step: int, settings: Settings) -> float:
    """Return the learning rate of a step."""
    done = step / settings.steps
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    decay = 1.0
    if done >= settings.decay_from:
        decay = max(0.01, (1 - done) / (1 - settings.decay_from))
    return settings.learning_rate * warmup * decay


def loss_of(model: LlamaForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of predicting ``windows`` [n, length + 1] from their own beginnings."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=windows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def draw(ids: torch.Tensor, n: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Return ``n`` random windows of ``length`` + 1 tokens."""
    starts = torch.randint(0, len(ids) - length - 1, (n,), generator=generator)
    return torch.stack([ids[start : start + length + 1] for start in starts.tolist()])


def validate(model: LlamaForCausalLM, ids: torch.Tensor, length: int) -> float:
    """Return the mean loss over every second window of the held-out books."""
    model.eval()
    with torch.no_grad():
        starts = range(0, len(ids) - length - 1, 2 * length)
        losses = [float(loss_of(model, ids[s : s + length + 1][None])) for s in starts]
    model.train()
    return sum(losses) / len(losses)


def train(data: Path, out: Path, settings: Settings) -> None:
    """Train from scratch and save the model."""
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    training, validation = (
        torch.from_numpy(np.load(data / f"{split}.npy").astype(np.int64))
        for split in ("train", "validation")
    )
    vocab_size = Tokenizer.from_file(str(data / "tokenizer.json")).get_vocab_size()
    model = build_model(vocab_size, settings.long_window)
    optimizer = build_optimizer(model, settings)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    started, average = time.monotonic(), math.nan
    for step in range(settings.steps):
        long = step >= settings.steps * (1 - settings.long_part)
        length = settings.long_window if long else settings.window
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        loss = loss_of(model, draw(training, settings.tokens_per_step // length, length, generator))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        average = loss.item() if step == 0 else 0.98 * average + 0.02 * loss.item()
        if step % 250 == 249 or step == settings.steps - 1:
            held_out = validate(model, validation, settings.window)
            print(
                f"step {step + 1} of {settings.steps}, {time.monotonic() - started:.0f} s:"
                f" loss {average:.3f}, held out {held_out:.3f}",
                flush=True,
            )
            model.save_pretrained(out)


def main() -> None:
    """Train with the settings above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="directory that prepare.py wrote")
    parser.add_argument("checkpoint", type=Path, help="directory to write")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    arguments = parser.parse_args()
    settings = Settings(steps=arguments.steps, seed=arguments.seed)
    train(arguments.data, arguments.checkpoint, settings)


if __name__ == "__main__":
    main()
