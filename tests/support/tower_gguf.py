"""The towers of tower_models as mmproj files, written as llama.cpp's converter writes them."""

from __future__ import annotations

from math import isqrt
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from family_gguf import write_gguf
from family_models import FamilyModel
from gguf_values import add_value, interleave, write_out
from lanewise.loading.towers.table import TOWERS
from lanewise.loading.towers.tower import CLIP_STATISTICS
from published_configs import Config
from tower_models import IMAGE

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


def gemma3_tensors(model: FamilyModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of an mmproj file; the norm has its 1."""
    found = {}
    for name, tensor in model.tensors.items():
        plain = name.removeprefix("model.")
        if plain.startswith("vision_tower."):
            bare = plain.removeprefix("vision_tower.").removeprefix("vision_model.")
            found[siglip_name(bare)] = tensor
        elif plain.endswith("mm_soft_emb_norm.weight"):
            found["mm.soft_emb_norm.weight"] = tensor + 1
        elif plain.endswith("mm_input_projection_weight"):
            found["mm.input_projection.weight"] = tensor
    return found


QWEN_NAMES = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
    "patch_embed.proj": "v.patch_embd",
    "pos_embed": "v.position_embd",
    "merger.norm": "v.post_ln",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
}


def qwen3_5_tensors(model: FamilyModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of an mmproj file, with a convolution for each of two frames."""
    found = {}
    for name, tensor in model.tensors.items():
        if not name.startswith("model.visual."):
            continue
        module, _, end = name.removeprefix("model.visual.").rpartition(".")
        if module.startswith("deepstack_merger_list."):
            _, number, rest = module.split(".")
            layer = model.config["vision_config"]["deepstack_visual_indexes"][int(number)]
            found[f"v.deepstack.{layer}.{rest.removeprefix('linear_')}.{end}"] = tensor
        elif module.startswith("blocks."):
            _, number, rest = module.split(".", 2)
            found[f"v.blk.{number}.{QWEN_NAMES[rest]}.{end}"] = tensor
        elif tensor.ndim == 5:
            for frame, suffix in enumerate(("", ".1")):
                found[f"v.patch_embd.weight{suffix}"] = np.ascontiguousarray(tensor[:, :, frame])
        else:
            found[f"{QWEN_NAMES[module]}.{end}"] = tensor
    return found


def siglip_keys(config: Config) -> dict[str, Any]:
    """Return metadata of SigLIP towers."""
    vision = config["vision_config"]
    merges = {"scale_factor": config["scale_factor"]} if "scale_factor" in config else {}
    if "mm_tokens_per_image" in config:
        side = vision["image_size"] // vision["patch_size"]
        merges["scale_factor"] = side // isqrt(config["mm_tokens_per_image"])
    return {
        "image_size": vision["image_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "projector.scale_factor": merges["scale_factor"],
        "preproc_image_size": 4 * vision["image_size"],
    }


def qwen3_5_keys(config: Config) -> dict[str, Any]:
    """Return metadata of Qwen's towers."""
    vision = config["vision_config"]
    taps = vision.get("deepstack_visual_indexes", [])
    return {
        "image_size": isqrt(vision["num_position_embeddings"]) * vision["patch_size"],
        "block_count": vision["depth"],
        "attention.head_count": vision["num_heads"],
        "spatial_merge_size": vision["spatial_merge_size"],
        "is_deepstack_layers": [number in taps for number in range(vision["depth"])],
    }


def lfm2_tensors(model: FamilyModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of an mmproj file, with colours before rows and columns."""
    found, projector = {}, {"layer_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"}
    side = model.config["vision_config"]["patch_size"]
    for name, tensor in model.tensors.items():
        plain = name.removeprefix("model.")
        module, _, end = plain.rpartition(".")
        if plain.startswith("vision_tower."):
            bare = plain.removeprefix("vision_tower.").removeprefix("vision_model.")
            if bare == "embeddings.patch_embedding.weight":
                tensor = tensor.reshape(len(tensor), side, side, 3).transpose(0, 3, 1, 2)
            found[siglip_name(bare)] = np.ascontiguousarray(tensor)
        elif plain.startswith("multi_modal_projector."):
            found[f"{projector[module.rpartition('.')[2]]}.{end}"] = tensor
    return found


def lfm2_keys(config: Config) -> dict[str, Any]:
    """Return metadata of LFM2-VL's towers."""
    vision = config["vision_config"]
    return {
        "image_size": isqrt(vision["num_patches"]) * vision["patch_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "projector.scale_factor": config["downsample_factor"],
    }


GEMMA4_NAMES = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gemma4_tensors(model: FamilyModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of an mmproj file, with colours before rows and columns."""
    side = model.config["vision_config"]["patch_size"]
    found = {}
    for name, tensor in model.tensors.items():
        plain = name.removeprefix("model.").removeprefix("vision_tower.")
        if plain.startswith("encoder.layers."):
            number, rest = plain.removeprefix("encoder.layers.").split(".", 1)
            module, _, end = rest.replace(".linear.", ".").rpartition(".")
            found[f"v.blk.{number}.{GEMMA4_NAMES[module]}.{end}"] = np.atleast_1d(tensor)
        elif plain == "patch_embedder.input_proj.weight":
            turned = tensor.reshape(len(tensor), side, side, 3).transpose(0, 3, 1, 2)
            found["v.patch_embd.weight"] = np.ascontiguousarray(turned)
        elif plain == "patch_embedder.position_embedding_table":
            found["v.position_embd.weight"] = tensor
        elif plain in ("std_bias", "std_scale"):
            found[f"v.{plain}"] = tensor
        elif plain == "embed_vision.embedding_projection.weight":
            found["mm.input_projection.weight"] = tensor
    return found


def gemma4_keys(config: Config) -> dict[str, Any]:
    """Return metadata of Gemma 4's towers."""
    vision = config["vision_config"]
    return {
        "image_size": 224,  # which means nothing
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "projector.scale_factor": vision["pooling_kernel_size"],
    }


PIXTRAL_NAMES = {
    "attention_norm": "ln1",
    "ffn_norm": "ln2",
    "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v",
    "attention.o_proj": "attn_out",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "vision_tower.patch_conv": "v.patch_embd",
    "vision_tower.ln_pre": "v.pre_ln",
    "multi_modal_projector.norm": "mm.input_norm",
    "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
    "multi_modal_projector.linear_1": "mm.1",
    "multi_modal_projector.linear_2": "mm.2",
}


def pixtral_tensors(model: FamilyModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of an mmproj file, with rows of Q and K in pairs."""
    heads = model.config["vision_config"]["num_attention_heads"]
    found = {"v.token_embd.img_break": np.zeros(64, np.float32)}
    for name, tensor in model.tensors.items():
        module, _, end = name.removeprefix("model.").rpartition(".")
        if module.startswith("vision_tower.transformer.layers."):
            number, rest = module.removeprefix("vision_tower.transformer.layers.").split(".", 1)
            if rest.endswith(("q_proj", "k_proj")):
                tensor = interleave(tensor, heads)
            found[f"v.blk.{number}.{PIXTRAL_NAMES[rest]}.{end}"] = tensor
        elif module in PIXTRAL_NAMES:
            found[f"{PIXTRAL_NAMES[module]}.{end}"] = tensor
    return found


def pixtral_keys(config: Config) -> dict[str, Any]:
    """Return metadata of Mistral 3's towers."""
    vision = config["vision_config"]
    return {
        "image_size": vision["image_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "spatial_merge_size": config["spatial_merge_size"],
    }


KINDS: dict[str, tuple[str, Any, Any]] = {
    "idefics3": ("idefics3", idefics3_tensors, siglip_keys),
    "smolvlm": ("idefics3", idefics3_tensors, siglip_keys),
    "gemma3": ("gemma3", gemma3_tensors, siglip_keys),
    "qwen3_5": ("qwen3vl_merger", qwen3_5_tensors, qwen3_5_keys),
    "qwen3_vl": ("qwen3vl_merger", qwen3_5_tensors, qwen3_5_keys),
    "gemma4": ("gemma4v", gemma4_tensors, gemma4_keys),
    "gemma4_large": ("gemma4v", gemma4_tensors, gemma4_keys),
    "lfm2_vl": ("lfm2", lfm2_tensors, lfm2_keys),
    "mistral3": ("pixtral", pixtral_tensors, pixtral_keys),
}


def write_mmproj(model: FamilyModel, path: Path, **changes: Any) -> Path:
    """Write the tower of a model as llama.cpp's converter does; ``changes`` replace metadata."""
    vision = model.config["vision_config"]
    projector, tensors_of, keys_of = KINDS[model.name]
    is_clip = projector in ("qwen3vl_merger", "pixtral")
    statistics = CLIP_STATISTICS if is_clip else {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    keys = {
        "patch_size": vision["patch_size"],
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "attention.layer_norm_epsilon": 1e-5 if is_clip else 1e-6,  # of the text there
        **statistics,
        "projection_dim": model.config["text_config"]["hidden_size"],
    } | keys_of(model.config)
    values = {f"clip.vision.{key}": value for key, value in keys.items()} | {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": projector,
        f"clip.use_{'silu' if vision.get('hidden_act') == 'silu' else 'gelu'}": True,
    }
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in (values | changes).items():
        add_value(writer, key, value)
    for name, tensor in tensors_of(model).items():
        writer.add_tensor(name, tensor)
    write_out(writer)
    return path


# The language models by their cases in family_gguf.
TEXTS = {
    "idefics3": "llama",
    "smolvlm": "llama",
    "gemma3": "gemma3",
    "qwen3_5": "qwen3_5",
    "qwen3_vl": "qwen3",
    "gemma4": "gemma4",
    "gemma4_large": "gemma4",
    "lfm2_vl": "lfm2",
    "mistral3": "mistral",
}
OF_TOWERS = ("vision_", "visual.", "connector.", "multi_modal_projector.", "embed_vision.")
AROUND_TEXT = ("model.", "language_model.", "text_model.", "model.")


def text_tensors(model: FamilyModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of the language model, by the names that it has alone."""
    found = {}
    for name, tensor in model.tensors.items():
        if name.removeprefix("model.").startswith(OF_TOWERS):
            continue
        for around in AROUND_TEXT:
            name = name.removeprefix(around)
        found[name if name.startswith("lm_head") else f"model.{name}"] = tensor
    return found


def write_both(model: FamilyModel, folder: Path) -> Path:
    """Write a model's two GGUF files and return that of the language model."""
    config = model.config["text_config"]
    projector = KINDS[model.name][0]
    image = next(tower.image_token for tower in TOWERS if tower.projector == projector)
    tokens = [image if i == IMAGE else f"token {i}" for i in range(config["vocab_size"])]
    changes = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}
    sections = (config.get("rope_parameters") or {}).get("mrope_section")
    changes |= {"rope.dimension_sections": [*sections, 0]} if sections else {}
    write_mmproj(model, folder / "mmproj-text.gguf")
    text = FamilyModel(TEXTS[model.name], config, text_tensors(model))
    return write_gguf(text, folder / "text.gguf", changes)
