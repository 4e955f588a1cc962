"""DFlash heads of tiny models, written as their makers publish them, and what they compute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from eagle3_heads import (
    DIM,
    HEADS,
    KV_HEADS,
    SIZE,
    layer_fields,
    normed,
    turned,
    writer_of,
)
from family_models import Arrays, values_of
from gguf_values import write_out

BLOCK, MASK = 8, 7
LAYER = {
    "input_layernorm.weight": "attn_norm",
    "post_attention_layernorm.weight": "ffn_norm",
    "self_attn.q_proj.weight": "attn_q",
    "self_attn.k_proj.weight": "attn_k",
    "self_attn.v_proj.weight": "attn_v",
    "self_attn.o_proj.weight": "attn_output",
    "self_attn.q_norm.weight": "attn_q_norm",
    "self_attn.k_norm.weight": "attn_k_norm",
    "mlp.gate_proj.weight": "ffn_gate",
    "mlp.up_proj.weight": "ffn_up",
    "mlp.down_proj.weight": "ffn_down",
}


def head_arrays(hidden: int, n_taps: int, n_layers: int = 2) -> Arrays:
    """A head's tensors."""
    q, kv = HEADS * DIM, KV_HEADS * DIM
    shapes = {
        "fc.weight": (hidden, n_taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    of_layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "self_attn.q_norm.weight": (DIM,),
        "self_attn.k_norm.weight": (DIM,),
        "mlp.gate_proj.weight": (SIZE, hidden),
        "mlp.up_proj.weight": (SIZE, hidden),
        "mlp.down_proj.weight": (hidden, SIZE),
    }
    for layer in range(n_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return {name: values_of(name, shape) for name, shape in shapes.items()}


def n_layers_of(arrays: Arrays) -> int:
    return sum(name.endswith("q_proj.weight") for name in arrays)


def write_head(
    folder: Path, arrays: Arrays, taps: Sequence[int], vocab: int = 256, **more: Any
) -> Path:
    """Write a head's directory; it reads behind the layers ``taps``."""
    section = {"mask_token_id": MASK, "target_layer_ids": list(taps)} | more.pop("section", {})
    config = {
        "architectures": ["DFlashDraftModel"],
        "block_size": BLOCK,
        "dflash_config": section,
        **layer_fields("qwen3", arrays["fc.weight"].shape[0], n_layers_of(arrays), vocab),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | more))
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_file(path: Path, arrays: Arrays, taps: Sequence[int], **more: int) -> Path:
    """Write a head's GGUF file as llama.cpp's converter does."""
    hidden, own = arrays["fc.weight"].shape[0], {"block_size": BLOCK} | more
    writer = writer_of(path, "dflash", hidden, n_layers_of(arrays), own)
    writer.add_array("dflash.target_layers", [tap + 1 for tap in taps])
    writer.add_mask_token_id(MASK)
    names = {"fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm"}
    for name, array in arrays.items():
        _, _, rest = name.partition(".")
        layer, _, part = rest.partition(".")
        of = names.get(name.removesuffix(".weight")) or f"blk.{layer}.{LAYER[part]}"
        writer.add_tensor(f"{of}.weight", array)
    write_out(writer)
    return path


def guessed_logits(
    arrays: Arrays,
    embedding: np.ndarray,
    output: np.ndarray,
    taps: np.ndarray,
    last: int,
    count: int,
    **kinds: Any,
) -> np.ndarray:
    """What the head makes of ``count`` masks behind token ``last``; ``taps`` are of those before.

    ``kinds``: ``causal``, the ``windows`` of layers, and whether the first tokens were ``skipped``.
    """
    a = {name: array.astype("f8") for name, array in arrays.items()}
    context = normed(taps @ a["fc.weight"].T, a["hidden_norm.weight"])
    x = embedding[[last] + [MASK] * count]
    at, new = np.arange(len(context) + len(x)), np.arange(len(context), len(context) + len(x))
    for layer in range(n_layers_of(arrays)):
        own = {name: a[f"layers.{layer}.{name}"] for name in LAYER}
        inner = normed(x, own["input_layernorm.weight"])
        both = np.concatenate([context, inner])
        q = (inner @ own["self_attn.q_proj.weight"].T).reshape(-1, HEADS, DIM)
        k = (both @ own["self_attn.k_proj.weight"].T).reshape(-1, KV_HEADS, DIM)
        v = (both @ own["self_attn.v_proj.weight"].T).reshape(-1, KV_HEADS, DIM)
        q = turned(normed(q, own["self_attn.q_norm.weight"]), new)
        k = turned(normed(k, own["self_attn.k_norm.weight"]), at)
        k[: kinds.get("skipped", 0)] = v[: kinds.get("skipped", 0)] = 0
        k, v = (np.repeat(one, HEADS // KV_HEADS, axis=1) for one in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(DIM)
        distance = new[:, None] - at
        window = kinds.get("windows", {}).get(layer, len(at))
        seen = (distance < window) & ((distance >= 0) | (not kinds.get("causal")))
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1)
        x = x + mixed @ own["self_attn.o_proj.weight"].T
        inner = normed(x, own["post_attention_layernorm.weight"])
        gate, up = (inner @ own[f"mlp.{one}_proj.weight"].T for one in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
    return normed(x[1:], a["norm.weight"]) @ output.T
