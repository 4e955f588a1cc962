"""Models as GPTQ, AWQ and compressed-tensors pack them, written one number at a time.

The packings are written out here from their public descriptions, in loops, and share nothing with
the code that reads them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import tiny_models
from lanewise.loading.base.checkpoint import Role

# What each linear layer is.
ROLES = {
    "self_attn.q_proj": Role.ATTN_Q,
    "self_attn.k_proj": Role.ATTN_K,
    "self_attn.v_proj": Role.ATTN_V,
    "self_attn.o_proj": Role.ATTN_OUTPUT,
    "mlp.gate_proj": Role.FFN_GATE,
    "mlp.up_proj": Role.FFN_UP,
    "mlp.down_proj": Role.FFN_DOWN,
}
LINEARS = tuple(ROLES)
# Matrices that read the same inputs have the same statistics of them, and so the same act-order.
SHARED_INPUTS = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Layer:
    """The numbers of one layer: weight[o, i] = scales[o, g] * (codes[o, i] - zeros[o, g])."""

    codes: np.ndarray  # [outputs, inputs]
    scales: np.ndarray  # f16 [outputs, groups]
    zeros: np.ndarray  # [outputs, groups]
    group_of: np.ndarray  # [inputs]

    def weights(self) -> np.ndarray:
        """The matrix in float32, exact."""
        out = np.zeros(self.codes.shape, np.float32)
        for i, g in enumerate(self.group_of):
            steps = self.codes[:, i].astype(np.float32) - self.zeros[:, g].astype(np.float32)
            out[:, i] = self.scales[:, g].astype(np.float32) * steps
        return out


def layer_of(
    weights: np.ndarray, bits: int, group: int, symmetric: bool, order: np.ndarray | None
) -> Layer:
    """Round a matrix to nearest; group 0 is the whole row, ``order`` that of act-order."""
    rows, cols = weights.shape
    group = group or cols
    place = np.arange(cols) if order is None else np.argsort(order)
    group_of = place // group
    groups, top = int(group_of.max()) + 1, 2**bits - 1
    scales, zeros = np.zeros((rows, groups), np.float16), np.zeros((rows, groups), int)
    codes = np.zeros((rows, cols), int)
    for g in range(groups):
        part = weights[:, group_of == g]
        if symmetric:
            zeros[:, g] = 2 ** (bits - 1)
            scales[:, g] = np.abs(part).max(axis=1) / (2 ** (bits - 1) - 0.5)
        else:
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.clip(np.rint(-low / scales[:, g].astype(np.float32)), 1, top)
        steps = part / scales[:, g, None].astype(np.float32) + zeros[:, g, None]
        codes[:, group_of == g] = np.clip(np.rint(steps), 0, top)
    return Layer(codes, scales, zeros, group_of)


def pack(values: np.ndarray, bits: int, axis: int, order: tuple[int, ...] | None = None):
    """Integers into 32-bit words along an axis, the first in the lowest bits."""
    values = values if axis == 1 else values.T
    if bits == 3:
        words = pack_stream(values, bits)
        return np.ascontiguousarray(words if axis == 1 else words.T).view(np.int32)
    in_word = 32 // bits
    order = order or tuple(range(in_word))
    words = np.zeros((len(values), -(-values.shape[1] // in_word)), np.uint32)
    for row in range(len(values)):
        for word in range(words.shape[1]):
            packed = 0
            for place, source in enumerate(order):
                column = word * in_word + source
                value = int(values[row, column]) if column < values.shape[1] else 0
                assert 0 <= value < 2**bits
                packed |= value << (bits * place)
            words[row, word] = packed
    words = words if axis == 1 else words.T
    return np.ascontiguousarray(words).view(np.int32)


def pack_stream(values: np.ndarray, bits: int) -> np.ndarray:
    """Integers into words one bit after the other, where words have no whole number of them."""
    words = np.zeros((len(values), -(-values.shape[1] * bits // 32)), np.uint32)
    for row in range(len(values)):
        for column in range(values.shape[1]):
            for bit in range(bits):
                place = column * bits + bit
                value = int(values[row, column]) >> bit & 1
                words[row, place // 32] |= np.uint32(value << place % 32)
    return words


def gptq_tensors(layer: Layer, bits: int, v2: bool) -> dict[str, np.ndarray]:
    """Words along the inputs; zero points less one unless v2."""
    return {
        "qweight": pack(layer.codes.T, bits, 0),
        "qzeros": pack(layer.zeros.T - (not v2), bits, 1),
        "scales": np.ascontiguousarray(layer.scales.T),
        "g_idx": layer.group_of.astype(np.int32),
    }


def awq_tensors(layer: Layer) -> dict[str, np.ndarray]:
    """Words along the outputs, in an order of their own."""
    return {
        "qweight": pack(layer.codes.T, 4, 1, AWQ_ORDER),
        "qzeros": pack(layer.zeros.T, 4, 1, AWQ_ORDER),
        "scales": np.ascontiguousarray(layer.scales.T),
    }


def compressed_tensors(layer: Layer, bits: int, symmetric: bool) -> dict[str, np.ndarray]:
    """Words along the inputs, outputs first; zero points along the outputs, if there are any."""
    tensors = {
        "weight_packed": pack(layer.codes, bits, 1),
        "weight_scale": layer.scales,
        "weight_shape": np.array(layer.codes.shape, np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack(layer.zeros, bits, 0)
    return tensors


@dataclass
class Packed:
    """A model in two forms that hold the same numbers."""

    packed: Path
    floats: Path
    layers: dict[str, Layer]


def write_model(
    folder: Path,
    method: str,
    *,
    family: str = "llama3",
    bits: int = 4,
    group: int = 64,
    symmetric: bool = False,
    act_order: bool = False,
    v2: bool = False,
    changes: dict | None = None,
    settings: dict | None = None,
    edit=lambda tensors: None,
) -> Packed:
    """Write a tiny model packed by ``method``, and the same weights as F32."""
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4}
    model = tiny_models.tiny_model(family, **sizes, num_key_value_heads=2, **(changes or {}))
    packed, floats, layers = dict(model.tensors), dict(model.tensors), {}
    random = np.random.default_rng(3)
    orders: dict[str, np.ndarray] = {}
    for name in [name for name in model.tensors if name.removesuffix(".weight").endswith(LINEARS)]:
        path = name.removesuffix(".weight")
        stem, last = path.rsplit(".", 1)
        cols = model.tensors[name].shape[1]
        key = f"{stem}.{SHARED_INPUTS.get(last, last)}"
        order = orders.setdefault(key, random.permutation(cols)) if act_order else None
        layer = layer_of(model.tensors[name], bits, group, symmetric, order)
        del packed[name]
        if method == "gptq":
            tensors = gptq_tensors(layer, bits, v2)
        elif method == "awq":
            tensors = awq_tensors(layer)
        else:
            tensors = compressed_tensors(layer, bits, symmetric)
        packed |= {f"{path}.{part}": tensor for part, tensor in tensors.items()}
        floats[name], layers[path] = layer.weights(), layer
    edit(packed)
    about = config_of(method, bits, group, symmetric, act_order, v2) | (settings or {})
    config = model.config | {"quantization_config": about}
    write = tiny_models.write_hf
    made = tiny_models.TinyModel
    return Packed(
        write(made(family, config, packed), folder / "packed"),
        write(made(family, model.config, floats), folder / "floats"),
        layers,
    )


def config_of(
    method: str, bits: int, group: int, symmetric: bool, act_order: bool, v2: bool
) -> dict:
    """quantization_config as the tools write it."""
    if method == "awq":
        about = {"bits": bits, "group_size": group or -1, "zero_point": True, "version": "gemm"}
        return {"quant_method": "awq", **about}
    if method == "gptq":
        form = "gptq_v2" if v2 else "gptq"
        about = {"bits": bits, "group_size": group or -1, "sym": symmetric, "desc_act": act_order}
        return {"quant_method": "gptq", "checkpoint_format": form, **about}
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    about = {"format": "pack-quantized", "config_groups": groups, "ignore": ["lm_head"]}
    return {"quant_method": "compressed-tensors", **about}


def rewrite_config(folder: Path, change) -> None:
    """Change the quantization_config of a directory."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = change(config["quantization_config"])
    path.write_text(json.dumps(config))


def save_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """Replace the weights of a directory."""
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
