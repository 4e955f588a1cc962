"""Models whose linear layers are codes beside scales, with the weights that they stand for."""

import json
import math

import numpy as np

import tiny_models
from packed_by_others import LINEARS
from raw_safetensors import write_raw

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4}
random = np.random.default_rng(5)


def model_of():
    return tiny_models.tiny_model("llama3", **SIZES, num_key_value_heads=2)


def value_of(code, exponent_bits):
    """One FP8 value from its definition."""
    mantissa_bits = 7 - exponent_bits
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> mantissa_bits & 2**exponent_bits - 1, code & 2**mantissa_bits - 1
    bias, top = 2 ** (exponent_bits - 1) - 1, 2**exponent_bits - 1
    if exponent_bits == 4 and code & 0x7F == 0x7F:
        return math.nan
    if exponent_bits == 5 and exponent == top:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


def write(folder, settings, convert):
    """Write a tiny model; ``convert`` makes the tensors of one linear layer, and its weights."""
    model, expected = model_of(), {}
    tensors = {name: ("F32", values) for name, values in model.tensors.items()}
    for name in list(tensors):
        layer = name.removesuffix(".weight")
        if layer.endswith(LINEARS):
            made, weights = convert(layer, tensors.pop(name)[1])
            tensors |= {layer + end: one for end, one in made.items()}
            expected[layer] = weights
    folder.mkdir(parents=True, exist_ok=True)
    folder = tiny_models.write_hf(model, folder)
    write_raw(folder / "model.safetensors", tensors)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": settings}
    path.write_text(json.dumps(config))
    return expected


def fp8(scales_of, names=(".weight", ".weight_scale_inv"), kind="F8_E4M3", bits=4):
    def convert(layer, weights):
        values = np.array([value_of(code, bits) for code in range(256)], np.float32)
        order = np.argsort(values[np.isfinite(values)], kind="stable")
        finite = np.flatnonzero(np.isfinite(values))[order]
        scales, spread = scales_of(*weights.shape)
        at = np.searchsorted(values[finite], weights / spread).clip(0, len(finite) - 1)
        codes = finite[at].astype(np.uint8)
        values = values[codes]
        made = {names[0]: (kind, codes), names[1]: ("F32", scales)}
        return made | {".input_scale": ("F32", np.ones(1, np.float32))}, values * spread

    return convert


def of_matrix(rows, cols):
    scale = np.float32(random.uniform(1e-3, 1e-2))
    return np.array([scale]), scale


def of_rows(rows, cols):
    scales = random.uniform(1e-3, 1e-2, (rows, 1)).astype(np.float32)
    return scales, scales


def of_blocks(rows, cols):
    scales = random.uniform(1e-3, 1e-2, (-(-rows // 48), -(-cols // 80))).astype(np.float32)
    spread = np.empty((rows, cols), np.float32)
    for row in range(rows):
        for col in range(cols):
            spread[row, col] = scales[row // 48, col // 80]
    return scales, spread
