"""The towers of tower_models as mmproj files, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from numpy.typing import NDArray

from family_models import FamilyModel
from gguf_values import add_value, write_out

# Names in llama.cpp's files, by what transformers names them.
SIGLIP_NAMES = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def siglip_name(name: str) -> str:
    """Return a SigLIP tensor's name in an mmproj file."""
    if name.startswith("encoder.layers."):
        number, _, rest = name.removeprefix("encoder.layers.").partition(".")
        module, _, end = rest.rpartition(".")
        return f"v.blk.{number}.{SIGLIP_NAMES[module]}.{end}"
    module, _, end = name.rpartition(".")
    return {
        "embeddings.patch_embedding": "v.patch_embd",
        "embeddings.position_embedding": "v.position_embd",
        "post_layernorm": "v.post_ln",
    }[module] + f".{end}"


def idefics3_tensors(model: FamilyModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of an mmproj file."""
    found = {}
    for name, tensor in model.tensors.items():
        if name.startswith("model.vision_model."):
            found[siglip_name(name.removeprefix("model.vision_model."))] = tensor
        elif name.startswith("model.connector."):
            found["mm.model.fc.weight"] = tensor
    return found


def write_mmproj(model: FamilyModel, path: Path, **changes: Any) -> Path:
    """Write the tower of a model as llama.cpp's converter does; ``changes`` replace metadata."""
    vision = model.config["vision_config"]
    keys = {
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "attention.layer_norm_epsilon": 1e-6,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "projection_dim": model.config["text_config"]["hidden_size"],
        "projector.scale_factor": model.config["scale_factor"],
        "preproc_image_size": 4 * vision["image_size"],
    }
    values = {f"clip.vision.{key}": value for key, value in keys.items()} | {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "idefics3",
        "clip.use_gelu": True,
    }
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in (values | changes).items():
        add_value(writer, key, value)
    for name, tensor in idefics3_tensors(model).items():
        writer.add_tensor(name, tensor)
    write_out(writer)
    return path
