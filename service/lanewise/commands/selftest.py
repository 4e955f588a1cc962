"""Runs one small random model through every level of this CPU; all must give scalar's bits."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lanewise.loading.base.checkpoint import Checkpoint, Role, Tensor, TokenizerFiles
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.names import ORDERS
from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.loading.programs.native_program import layer_shapes
from lanewise.runtime import Batch, Model, NativeError, Session, usable_levels
from lanewise.runtime.targets import MATRICES

REFERENCE = "scalar"
SEED = 7

CONFIG = ModelConfig(
    architecture="llama",
    hidden_size=256,
    vocab_size=512,
    context_length=128,
    rms_norm_eps=1e-5,
    tied_embeddings=True,
    ropes=(Rope(10000.0, 64),),
    layers=(Layer(Attention(n_heads=4, n_kv_heads=2, head_dim=64, rope=0), Gated(512)),),
)


@dataclass(frozen=True, slots=True)
class LevelResult:
    """Whether a level gave the same bits as scalar for one type of weights."""

    isa: str
    weights: str
    equal: bool
    error: str | None = None


def run_selftest(threads: int) -> list[LevelResult]:
    """Compare every level this CPU can run with scalar, for every type of weights."""
    levels = [isa for isa in usable_levels() if isa != REFERENCE]
    results = []
    for kind in BLOCK_MAKERS:
        weights = kind.name.lower()
        expected = hash_of_logits(kind, REFERENCE, threads=1)
        for isa in levels:
            try:
                equal = hash_of_logits(kind, isa, threads) == expected
                results.append(LevelResult(isa, weights, equal))
            except NativeError as error:
                results.append(LevelResult(isa, weights, False, str(error)))
    return results


def hash_of_logits(kind: TensorType, isa: str, threads: int) -> str:
    """SHA-256 of the logits of a prompt of nine tokens and of one step of two sequences."""
    digest = hashlib.sha256()
    with (
        Model.load(random_checkpoint(kind), isa=isa, threads=threads) as model,
        Session(model, threads=threads, blocks=2, max_batch_tokens=16, max_batch_logits=16) as run,
    ):
        digest.update(run.step(Batch(list(range(9)), [0, 9], [0], [[0]], list(range(9)))).tobytes())
        digest.update(run.step(Batch([9, 3], [0, 1, 2], [9, 0], [[0], [1]], [0, 1])).tobytes())
    return digest.hexdigest()


def random_checkpoint(kind: TensorType) -> Checkpoint:
    """A one-layer model in memory whose matrices are of type ``kind``."""
    roles = layer_shapes(CONFIG, 0)
    shapes = {
        Role.TOKEN_EMBEDDING: (CONFIG.vocab_size, CONFIG.hidden_size),
        Role.OUTPUT_NORM: (1, CONFIG.hidden_size),
    } | {role: shape for role, shape in roles.items() if role not in ORDERS}
    rng = np.random.default_rng(SEED)
    tensors = []
    for role, (rows, cols) in shapes.items():
        tensor_kind = kind if role in MATRICES else TensorType.F32
        data = memoryview(BLOCK_MAKERS[tensor_kind](rng, rows, cols).tobytes())
        tensors.append(Tensor(role.name.lower(), role, 0, tensor_kind, rows, cols, data, 0))
    path = Path("self-test")
    files = TokenizerFiles(path, CONFIG.vocab_size)
    return Checkpoint(path, "self-test", CONFIG, tensors, files, close=lambda: None)


Maker = Callable[[np.random.Generator, int, int], NDArray[np.uint8]]


def _floats(dtype: str, drop_bytes: int = 0) -> Maker:
    def make(rng: np.random.Generator, rows: int, cols: int) -> NDArray[np.uint8]:
        values = rng.standard_normal((rows, cols), np.float32) / np.float32(np.sqrt(cols))
        as_bytes = values.astype(dtype).view(np.uint8).reshape(rows * cols, -1)
        # The upper half of a little-endian float32 is a bfloat16.
        return np.ascontiguousarray(as_bytes[:, drop_bytes:])

    return make


def _blocks(
    weights: int, n_bytes: int, scale_at: int, scale: float, minimum_at: int = -1, factor: float = 0
) -> Maker:
    """Random codes in blocks of the given size, with one float16 scale in each.

    With ``minimum_at`` there is another one, ``factor`` times as large, for the minimum.
    """

    def make(rng: np.random.Generator, rows: int, cols: int) -> NDArray[np.uint8]:
        blocks = rng.integers(0, 256, (rows * cols // weights, n_bytes), np.uint8)
        scales = rng.uniform(0.5 * scale, scale, len(blocks)).astype("<f2")
        blocks[:, scale_at : scale_at + 2] = scales.view(np.uint8).reshape(-1, 2)
        if minimum_at >= 0:
            minimums = (scales * factor).astype("<f2")
            blocks[:, minimum_at : minimum_at + 2] = minimums.view(np.uint8).reshape(-1, 2)
        return blocks

    return make


def _mxfp4(rng: np.random.Generator, rows: int, cols: int) -> NDArray[np.uint8]:
    """Random codes in blocks of 32, the exponent of their scale before them."""
    blocks = rng.integers(0, 256, (rows * cols // 32, 17), np.uint8)
    blocks[:, 0] = rng.integers(120, 124, len(blocks))
    return blocks


def _iq1_m(rng: np.random.Generator, rows: int, cols: int) -> NDArray[np.uint8]:
    """Random codes; the float16 scale lies in the upper four bits of the last four words."""
    blocks = rng.integers(0, 256, (rows * cols // 256, 56), np.uint8)
    words = blocks[:, 48:].copy().view("<u2")
    scale = int(np.float16(0.002).view(np.uint16))
    words = words & 0x0FFF | (scale >> np.arange(0, 16, 4) & 15).astype(np.uint16) << 12
    blocks[:, 48:] = words.astype("<u2").view(np.uint8)
    return blocks


def _fp4(rng: np.random.Generator, rows: int, cols: int) -> NDArray[np.uint8]:
    """Rows as NVFP4 is held: codes, a scale for each 16 inputs, and that of the row."""
    codes = rng.integers(0, 256, (rows, cols // 2), np.uint8)
    scales = rng.integers(40, 64, (rows, cols // 16), np.uint8)  # 2^-2 to 2^1
    of_rows = np.full((rows, 1), 2.0**-7, "<f4").view(np.uint8)
    return np.concatenate([codes, scales, of_rows], axis=1)


BLOCK_MAKERS: dict[TensorType, Maker] = {
    TensorType.F32: _floats("<f4"),
    TensorType.F16: _floats("<f2"),
    TensorType.BF16: _floats("<f4", drop_bytes=2),
    TensorType.Q4_0: _blocks(32, 18, scale_at=0, scale=0.02),
    TensorType.Q8_0: _blocks(32, 34, scale_at=0, scale=0.001),
    TensorType.Q6_K: _blocks(256, 210, scale_at=208, scale=0.00005),
    TensorType.Q4_1: _blocks(32, 20, scale_at=0, scale=0.02, minimum_at=2, factor=-7),
    TensorType.Q5_0: _blocks(32, 22, scale_at=0, scale=0.01),
    TensorType.Q5_1: _blocks(32, 24, scale_at=0, scale=0.01, minimum_at=2, factor=-15),
    TensorType.Q2_K: _blocks(256, 84, scale_at=80, scale=0.01, minimum_at=82, factor=1.5),
    TensorType.Q3_K: _blocks(256, 110, scale_at=108, scale=0.002),
    TensorType.Q4_K: _blocks(256, 144, scale_at=0, scale=0.0005, minimum_at=2, factor=7),
    TensorType.Q5_K: _blocks(256, 176, scale_at=0, scale=0.00025, minimum_at=2, factor=15),
    TensorType.IQ4_NL: _blocks(32, 18, scale_at=0, scale=0.001),
    TensorType.IQ4_XS: _blocks(256, 136, scale_at=0, scale=0.00005),
    TensorType.MXFP4: _mxfp4,
    TensorType.IQ1_S: _blocks(256, 50, scale_at=0, scale=0.002),
    TensorType.IQ1_M: _iq1_m,
    TensorType.IQ2_XXS: _blocks(256, 66, scale_at=0, scale=0.0005),
    TensorType.IQ2_XS: _blocks(256, 74, scale_at=0, scale=0.0005),
    TensorType.IQ2_S: _blocks(256, 82, scale_at=0, scale=0.0005),
    TensorType.IQ3_XXS: _blocks(256, 98, scale_at=0, scale=0.0002),
    TensorType.IQ3_S: _blocks(256, 110, scale_at=0, scale=0.0002),
    TensorType.TQ1_0: _blocks(256, 54, scale_at=52, scale=0.05),
    TensorType.TQ2_0: _blocks(256, 66, scale_at=64, scale=0.05),
    TensorType.Q1_0: _blocks(128, 18, scale_at=0, scale=0.05),
    TensorType.Q2_0: _blocks(64, 18, scale_at=0, scale=0.05),
    TensorType.FP4: _fp4,
}
