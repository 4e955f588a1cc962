"""Assistants of tiny Gemma 4 models, written as their makers publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from family_models import Arrays, family_model, values_of

SIZE, INNER, EPS = 32, 48, 1e-6
KINDS = ("sliding_attention", "sliding_attention", "full_attention")


# Names in GGUF files.
LAYER = {
    "input_layernorm.weight": "attn_norm",
    "post_attention_layernorm.weight": "post_attention_norm",
    "pre_feedforward_layernorm.weight": "ffn_norm",
    "post_feedforward_layernorm.weight": "post_ffw_norm",
    "layer_scalar": "layer_output_scale",
    "self_attn.q_proj.weight": "attn_q",
    "self_attn.q_norm.weight": "attn_q_norm",
    "self_attn.o_proj.weight": "attn_output",
    "mlp.gate_proj.weight": "ffn_gate",
    "mlp.up_proj.weight": "ffn_up",
    "mlp.down_proj.weight": "ffn_down",
}
OWN = {
    "pre_projection.weight": "nextn.pre_projection.weight",
    "post_projection.weight": "nextn.post_projection.weight",
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}


def assistant_config(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of an assistant for a case of Gemma 4."""
    model = family_model(name).config
    whole = next(iter(model["per_layer_config"].values()))
    n_kv = whole.get("num_key_value_heads", model["num_key_value_heads"])
    text = {
        "model_type": "gemma4_text",
        "hidden_size": SIZE,
        "intermediate_size": INNER,
        "num_hidden_layers": len(KINDS),
        "layer_types": list(KINDS),
        "num_attention_heads": 4,
        "num_key_value_heads": model["num_key_value_heads"],
        "num_global_key_value_heads": n_kv,
        "head_dim": model["head_dim"],
        "global_head_dim": whole["head_dim"],
        "attention_k_eq_v": model["attention_k_eq_v"],
        "num_kv_shared_layers": len(KINDS),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "sliding_window": model["sliding_window"],
        "rope_parameters": model["rope_parameters"],
        "max_position_embeddings": 512,
        "rms_norm_eps": EPS,
        "vocab_size": model["vocab_size"],
        "tie_word_embeddings": True,
    }
    return {
        "model_type": "gemma4_assistant",
        "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": model["hidden_size"],
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": text | changes,
    }


def assistant_arrays(config: dict[str, Any]) -> Arrays:
    """Its tensors, by the names that transformers writes."""
    text, hidden = config["text_config"], config["backbone_hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "pre_projection.weight": (SIZE, 2 * hidden),
        "post_projection.weight": (hidden, SIZE),
        "model.embed_tokens.weight": (text["vocab_size"], SIZE),
        "model.norm.weight": (SIZE,),
    }
    for number, kind in enumerate(KINDS):
        dim = text["head_dim" if kind.startswith("sliding") else "global_head_dim"]
        shapes |= {
            f"model.layers.{number}.{name}": shape
            for name, shape in {
                "input_layernorm.weight": (SIZE,),
                "post_attention_layernorm.weight": (SIZE,),
                "pre_feedforward_layernorm.weight": (SIZE,),
                "post_feedforward_layernorm.weight": (SIZE,),
                "layer_scalar": (1,),
                "self_attn.q_proj.weight": (4 * dim, SIZE),
                "self_attn.q_norm.weight": (dim,),
                "self_attn.o_proj.weight": (SIZE, 4 * dim),
                "mlp.gate_proj.weight": (INNER, SIZE),
                "mlp.up_proj.weight": (INNER, SIZE),
                "mlp.down_proj.weight": (SIZE, INNER),
            }.items()
        }
    return {name: values_of(name, shape) for name, shape in shapes.items()}


def write_assistant(
    name: str,
    folder: Path,
    arrays: Arrays | None = None,
    whole: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write the directory of an assistant for a case of Gemma 4."""
    config = assistant_config(name, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | (whole or {})))
    save_file(arrays or assistant_arrays(config), folder / "model.safetensors", {"format": "pt"})
    return folder


def write_file(name: str, path: Path) -> Path:
    """Write its GGUF file as llama.cpp's converter does."""
    import gguf  # not there where transformers' guesses are made

    config = assistant_config(name)
    text, arrays = config["text_config"], assistant_arrays(config)
    ropes = text["rope_parameters"]
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    is_windowed = [kind.startswith("sliding") for kind in KINDS]
    n_kv = [
        text["num_key_value_heads" if one else "num_global_key_value_heads"] for one in is_windowed
    ]
    for key, value in {
        "block_count": len(KINDS),
        "nextn_predict_layers": len(KINDS),
        "context_length": 512,
        "embedding_length": SIZE,
        "embedding_length_out": config["backbone_hidden_size"],
        "feed_forward_length": INNER,
        "attention.head_count": 4,
        "attention.key_length": text["global_head_dim"],
        "attention.value_length": text["global_head_dim"],
        "attention.key_length_swa": text["head_dim"],
        "attention.value_length_swa": text["head_dim"],
        "attention.sliding_window": text["sliding_window"],
        "attention.shared_kv_layers": len(KINDS),
        "rope.dimension_count": text["global_head_dim"],
        "rope.dimension_count_swa": text["head_dim"],
    }.items():
        writer.add_uint32(f"gemma4-assistant.{key}", value)
    writer.add_array("gemma4-assistant.attention.head_count_kv", n_kv)
    writer.add_array("gemma4-assistant.attention.sliding_window_pattern", is_windowed)
    for key, number in {
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
    }.items():
        writer.add_float32(f"gemma4-assistant.{key}", number)
    half = text["global_head_dim"] // 2
    turned = int(half * ropes["full_attention"]["partial_rotary_factor"])
    factors = np.where(np.arange(half) < turned, 1.0, 1e30).astype(np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    for key, array in arrays.items():
        parts = key.split(".")
        if parts[1] == "layers":
            key = f"blk.{parts[2]}.{LAYER['.'.join(parts[3:])]}.weight"
        writer.add_tensor(OWN.get(key, key), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
