"""EAGLE-3 heads of tiny models, written as their makers publish them, and what they compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from family_models import Arrays, values_of
from gguf_values import interleave, write_out
from lanewise.loading.base.checkpoint import Checkpoint, Role
from lanewise.loading.files.rearranging import to_f32

HEADS, KV_HEADS, DIM, SIZE, EPS, THETA = 4, 2, 16, 96, 1e-5, 5e5
IDS = "eagle_aux_hidden_state_layer_ids"
LAYER = {
    "input_layernorm.weight": "attn_norm",
    "hidden_norm.weight": "attn_norm_2",
    "post_attention_layernorm.weight": "ffn_norm",
    "self_attn.q_proj.weight": "attn_q",
    "self_attn.k_proj.weight": "attn_k",
    "self_attn.v_proj.weight": "attn_v",
    "self_attn.o_proj.weight": "attn_output",
    "mlp.gate_proj.weight": "ffn_gate",
    "mlp.up_proj.weight": "ffn_up",
    "mlp.down_proj.weight": "ffn_down",
}


def head_arrays(hidden: int, vocab: int, outputs: int | None, **more: bool) -> Arrays:
    """A head's tensors; with ``outputs`` it knows every other token of so many, from the third on.

    ``more`` may ask for an embedding of its own, for a norm of taps, and for Qwen's norms of heads.
    """
    q, kv, two = HEADS * DIM, KV_HEADS * DIM, 2 * hidden
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (outputs or vocab, hidden),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (q, two),
        "midlayer.self_attn.k_proj.weight": (kv, two),
        "midlayer.self_attn.v_proj.weight": (kv, two),
        "midlayer.self_attn.o_proj.weight": (hidden, q),
        "midlayer.mlp.gate_proj.weight": (SIZE, hidden),
        "midlayer.mlp.up_proj.weight": (SIZE, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, SIZE),
    }
    if more.get("embedding"):
        shapes["embed_tokens.weight"] = (vocab, hidden)
    if more.get("fusion_norm"):
        shapes["input_norm.weight"] = (3 * hidden,)
    if more.get("head_norms"):
        shapes |= {f"midlayer.self_attn.{one}_norm.weight": (DIM,) for one in "qk"}
    arrays: Arrays = {name: values_of(name, shape) for name, shape in shapes.items()}
    if outputs is not None:
        tokens = 2 + 2 * np.arange(outputs)
        arrays["d2t"] = tokens - np.arange(outputs)
        arrays["t2d"] = np.isin(np.arange(vocab), tokens)
    return arrays


def layer_fields(model_type: str, hidden: int, n_layers: int, vocab: int) -> dict[str, Any]:
    """What a config.json says of the layers of a head."""
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": SIZE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "num_hidden_layers": n_layers,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "vocab_size": vocab,
        "tie_word_embeddings": False,
    }


def writer_of(
    path: Path, arch: str, hidden: int, n_layers: int, own: dict[str, int]
) -> gguf.GGUFWriter:
    """Begin a GGUF file with what it says of the layers of a head, and its ``own`` numbers."""
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": n_layers,
        "context_length": 512,
        "embedding_length": hidden,
        "feed_forward_length": SIZE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": DIM,
        "attention.value_length": DIM,
    }
    for key, value in (numbers | own).items():
        writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", EPS)
    writer.add_float32(f"{arch}.rope.freq_base", THETA)
    return writer


def write_head(folder: Path, arrays: Arrays, taps: tuple[int, int, int], **more: Any) -> Path:
    """Write a head as its own training framework does, or, with ``speculators``, as that does."""
    hidden, vocab = arrays["fc.weight"].shape[0], more.pop("vocab", 256)
    by_speculators = more.pop("speculators", False)
    has_norms = "midlayer.self_attn.q_norm.weight" in arrays
    layer = layer_fields("qwen3" if has_norms else "llama", hidden, 1, vocab)
    outputs = arrays["lm_head.weight"].shape[0]
    if by_speculators:
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": layer,
            "draft_vocab_size": outputs,
            IDS: list(taps),
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a/b"}},
        }
        arrays = {name.replace("midlayer.", "layers.0."): one for name, one in arrays.items()}
    else:
        own = {"use_aux_hidden_state": True, IDS: [tap - 1 for tap in taps]}
        config = layer | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": outputs,
            "eagle_config": own,
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | more))
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_file(path: Path, arrays: Arrays, taps: tuple[int, int, int], vocab: int = 256) -> Path:
    """Write a head's GGUF file as llama.cpp's converter does."""
    hidden = arrays["fc.weight"].shape[0]
    own = {"rope.dimension_count": DIM, "vocab_size": vocab, "target_hidden_size": hidden}
    writer = writer_of(path, "eagle3", hidden, 1, own)
    writer.add_array("eagle3.target_layers", list(taps))
    writer.add_bool("eagle3.norm_before_residual", False)
    names = {
        "fc.weight": "fc.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "embed_tokens.weight": "token_embd.weight",
    } | {f"midlayer.{name}": f"blk.0.{to}.weight" for name, to in LAYER.items()}
    for name, array in arrays.items():
        if name == "d2t":
            writer.add_tensor("d2t", (array + np.arange(len(array))).astype(np.int64))
        elif name in names:
            heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2], 0)
            writer.add_tensor(names[name], interleave(array, heads) if heads else array)
    write_out(writer)
    return path


def weights_of(checkpoint: Checkpoint) -> dict[tuple[Role, int], np.ndarray]:
    """The floats of a checkpoint of such types, to compute with."""
    found = {}
    for one in checkpoint.tensors:
        values = to_f32(one.data, one.type).astype("f8")
        found[one.role, one.layer] = values.reshape(one.rows, -1) if one.rows > 1 else values
    return found


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def turned(heads: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate the two halves of [tokens][heads][DIM]."""
    half = DIM // 2
    angles = positions[:, None] * THETA ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = heads[..., :half], heads[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def guessed_logits(
    arrays: Arrays,
    embedding: np.ndarray,
    taps: np.ndarray,
    tokens: list[int],
    **more: bool,
) -> np.ndarray:
    """What the head makes behind each of the last tokens, of which ``taps`` are of all but those.

    Row i of ``taps`` is of token i; where they end the head goes on with its own rows.
    """
    a = {name: array.astype("f8") for name, array in arrays.items()}
    x = {name.removeprefix("midlayer."): one for name, one in a.items() if "midlayer." in name}
    if "input_norm.weight" in a:
        taps = normed(taps, a["input_norm.weight"])
    h, logits = taps @ a["fc.weight"].T, []
    for end in range(len(taps) + 1, len(tokens) + 1):
        at = np.arange(1, end)
        hidden = normed(h, x["hidden_norm.weight"])
        read = normed(embedding[tokens[1:end]], x["input_layernorm.weight"])
        both = np.concatenate([read, hidden], axis=1)
        q, k, v = (both @ x[f"self_attn.{one}_proj.weight"].T for one in "qkv")
        q, k, v = (
            q.reshape(-1, HEADS, DIM),
            k.reshape(-1, KV_HEADS, DIM),
            v.reshape(-1, KV_HEADS, DIM),
        )
        if "self_attn.q_norm.weight" in x:
            q, k = normed(q, x["self_attn.q_norm.weight"]), normed(k, x["self_attn.k_norm.weight"])
        q, k = turned(q, at), turned(k, at)
        k, v = (np.repeat(one, HEADS // KV_HEADS, axis=1) for one in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(DIM)
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(len(at), -1)
        stream = (hidden if more.get("norm_before_residual") else h) + (
            mixed @ x["self_attn.o_proj.weight"].T
        )
        inner = normed(stream, x["post_attention_layernorm.weight"])
        gate, up = (inner @ x[f"mlp.{one}_proj.weight"].T for one in ("gate", "up"))
        stream = stream + (gate / (1 + np.exp(-gate)) * up) @ x["mlp.down_proj.weight"].T
        own = normed(stream[-1], a["norm.weight"]) @ a["lm_head.weight"].T
        if "d2t" in arrays:
            spread = np.full(len(embedding), -1e30)
            spread[np.arange(len(own)) + arrays["d2t"].astype(int)] = own
            own = spread
        logits.append(own)
        h = np.concatenate([h, stream[-1:]])
    return np.stack(logits)
