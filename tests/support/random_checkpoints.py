"""Checkpoints in memory: random weights of any program."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lanewise.loading.base.checkpoint import Checkpoint, Role, Tensor, TokenizerFiles
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.program import ModelConfig
from tests.golden.reference import shapes

VOCAB = 37


def random_weights(
    rng: np.random.Generator, config: ModelConfig
) -> dict[tuple[Role, int], np.ndarray]:
    weights = {}
    for layer in range(config.n_layers):
        for role in Role:
            shape = shapes.shape_of(config, role, layer)
            if shape is None:
                continue
            values = rng.standard_normal(shape) * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)
            if role.name.endswith("NORM"):
                values += 1
            if role is Role.HEAD_TOKENS:
                values = np.sort(rng.permutation(config.vocab_size)[: shape[0]])
            if role is Role.STATE_RATE:
                values = -np.exp(values)
            weights[role, layer] = values.astype("f4")
    return weights


def checkpoint(config: ModelConfig, weights: dict[tuple[Role, int], np.ndarray]) -> Checkpoint:
    tensors = []
    for (role, layer), values in weights.items():
        rows = len(values) if values.ndim > 1 else 1
        data = memoryview(values.tobytes())
        name = f"{role.name} {layer}"
        tensors.append(Tensor(name, role, layer, TensorType.F32, rows, values.shape[-1], data, 0))
    path = Path("program")
    files = TokenizerFiles(path, config.vocab_size)
    return Checkpoint(path, "program", config, tensors, files, close=lambda: None)
