"""Adapters as PEFT saves them, run live: the same logits, or a refusal whose remedy has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topics
from family_models import family_model, write_model
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Adapter, Batch, Model, Session
from tiny_models import prompt

pytestmark = [
    pytest.mark.native,
    pytest.mark.reference,
    pytest.mark.usefixtures("library"),
    pytest.mark.filterwarnings("ignore"),  # of both of them
]
LENGTH, RANK = 40, 4
ATTENTION = ["q_proj", "v_proj"]
DEFAULTS: dict[str, Any] = {"r": RANK, "lora_alpha": 8, "target_modules": ATTENTION}
READ: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("qwen2", {}),
    "all matrices": ("llama", {"target_modules": "all-linear"}),
    "rsLoRA": ("qwen2", {"use_rslora": True}),
    "ranks": ("llama", {"rank_pattern": {r"layers\.1\..*v_proj": 2, "q_proj": 3}}),
    "alphas": ("llama", {"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2}}),
    "ranks and alphas by root": (
        "llama",
        {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"v_proj": 32}, "use_rslora": True},
    ),
    "inputs first": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "one layer": ("llama", {"layers_to_transform": [1]}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "DoRA": ("llama", {"use_dora": True}, "use_dora is True"),
    "a bias of B": ("qwen2", {"lora_bias": True}, "lora_bias is True"),
    "all biases": ("qwen2", {"bias": "all"}, "bias is 'all'"),
    "their biases": ("qwen2", {"bias": "lora_only"}, "bias is 'lora_only'"),
    "the head": ("llama", {"target_modules": [*ATTENTION, "lm_head"]}, "lm_head"),
    "the embedding": ("llama", {"target_modules": [*ATTENTION, "embed_tokens"]}, "embed_tokens"),
    "a head as a whole": ("llama", {"modules_to_save": ["lm_head"]}, "modules_to_save is"),
    "norms as a whole": ("llama", {"modules_to_save": ["norm"]}, "modules_to_save is"),
    "tokens": (
        "llama",
        {"trainable_token_indices": {"embed_tokens": [3, 5]}},
        "trainable_token_indices is",
    ),
}


def made(base: Path, settings: dict[str, Any]) -> Any:
    """A model of transformers with a random adapter, none of whose parts is what it began as."""
    torch = topics.module("torch", "reference")
    peft = topics.module("peft", "reference")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                size = 0.6 / RANK**0.5
                parameter += torch.rand_like(parameter) * 2 * size - size
    return adapted


def theirs(model: Any) -> np.ndarray:
    """The logits of a model of transformers."""
    import torch

    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([prompt(LENGTH)])).logits[0].float().numpy()
    return found


def ours(folder: Path, adapter: Path | None = None) -> np.ndarray:
    """The logits of the model of a directory, with an adapter if one is given."""
    with (
        open_checkpoint(folder) as checkpoint,
        Model.load(checkpoint, threads=2) as model,
        Session(
            model,
            threads=2,
            blocks=4,
            max_batch_tokens=LENGTH,
            max_batch_logits=LENGTH,
            kv_type="f32",
            max_adapter_rank=8,
        ) as session,
    ):
        loaded = []
        if adapter is not None:
            files = open_adapter(adapter, model.config)
            loaded.append(Adapter.load(model, files))
            files.close()
        batch = Batch(
            prompt(LENGTH), [0, LENGTH], [0], [[0, 1, 2]], range(LENGTH), adapters=loaded or None
        )
        found = session.step(batch).copy()
        for one in loaded:
            one.close()
    return found


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() / np.abs(expected).max() < 2e-4


@pytest.mark.parametrize("name", READ)
def test_an_adapter_has_the_logits_of_peft(name: str, tmp_path: Path) -> None:
    family, settings = READ[name]
    base = write_model(family_model(family), tmp_path / "base")
    model = made(base, DEFAULTS | settings)
    model.save_pretrained(tmp_path / "adapter")
    expected = theirs(model)
    assert np.abs(ours(base) - expected).max() / np.abs(expected).max() > 0.01
    assert_close(ours(base, tmp_path / "adapter"), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_served_merged(name: str, tmp_path: Path) -> None:
    family, settings, said = REFUSED[name]
    base = write_model(family_model(family), tmp_path / "base")
    model = made(base, DEFAULTS | settings)
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelFileError) as caught:
        ours(base, tmp_path / "adapter")
    assert said in str(caught.value)
    assert "merge it into its model with PEFT's merge_and_unload()" in str(caught.value)
    expected = theirs(model)
    merged = tmp_path / "merged"
    model.merge_and_unload().save_pretrained(merged)
    (merged / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    assert_close(ours(merged), expected)
