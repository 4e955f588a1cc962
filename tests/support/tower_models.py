"""Tiny random models that read pictures: their configs, their pictures, their files.

tests/golden/towers has what transformers writes and computes of them, with the script.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from family_models import FamilyModel, model_of
from published_configs import VOCAB, Config

GOLDEN = Path(__file__).parents[1] / "golden" / "towers"
IMAGE = 250  # token id
Pixels = NDArray[np.uint8]

LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
# No size of the second is a multiple of 32.
CASES: dict[str, Config] = {
    "idefics3": {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": LLAMA,
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 4,
        },
        "scale_factor": 4,
        "image_token_id": IMAGE,
    },
    "smolvlm": {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "text_config": LLAMA | {"tie_word_embeddings": True},
        "tie_word_embeddings": True,
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": 44,
            "intermediate_size": 70,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 54,
            "patch_size": 6,
        },
        "scale_factor": 3,
        "image_token_id": IMAGE,
    },
}
CASES["gemma3"] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": 32,
        "patch_size": 4,
        "vision_use_head": False,
    },
    "mm_tokens_per_image": 4,
    "image_token_index": IMAGE,
    "boi_token_index": 251,
    "eoi_token_index": 252,
}
CASES["qwen3_5"] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.5,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 3,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_heads": 3,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 36,
    },
    "image_token_id": IMAGE,
    "video_token_id": 251,
    "vision_start_token_id": 252,
    "vision_end_token_id": 253,
}
CASES["lfm2_vl"] = {
    "architectures": ["Lfm2VlForConditionalGeneration"],
    "model_type": "lfm2_vl",
    "text_config": {
        "model_type": "lfm2",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
        "max_position_embeddings": 256,
    },
    "vision_config": {
        "model_type": "siglip2_vision_model",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "patch_size": 4,
        "num_patches": 36,
        "vision_use_head": False,
    },
    "projector_hidden_size": 72,
    "downsample_factor": 2,
    "image_token_id": IMAGE,
}
CASES["mistral3"] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": {
        "model_type": "mistral",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-3,  # so that the projector's norm differs from the tower's
    },
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "head_dim": 16,
        "patch_size": 4,
        "image_size": 64,
        "hidden_act": "silu",
    },
    "spatial_merge_size": 2,
    "image_token_index": IMAGE,
}
CASES["qwen3_vl"] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    },
    "vision_config": CASES["qwen3_5"]["vision_config"]
    | {"depth": 4, "deepstack_visual_indexes": [1, 2]},
    "image_token_id": IMAGE,
    "video_token_id": 251,
    "vision_start_token_id": 252,
    "vision_end_token_id": 253,
}
GEMMA4_TEXT = {
    "model_type": "gemma4_text",
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "sliding_window": 16,
    "use_bidirectional_attention": None,
    "pad_token_id": 0,
    "max_position_embeddings": 256,
}
GEMMA4_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 64,
}
CASES["gemma4"] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": GEMMA4_TEXT,
    "vision_config": GEMMA4_VISION | {"use_clipped_linears": True},
    "audio_config": None,
    "image_token_id": IMAGE,
    "boi_token_id": 251,
    "eoi_token_id": 252,
}
# Of the large ones: no values for each layer, no clamps, and tokens that see their picture.
CASES["gemma4_large"] = CASES["gemma4"] | {
    "text_config": GEMMA4_TEXT
    | {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
    "vision_config": GEMMA4_VISION | {"standardize": True},
}
CASES["gemma4_unified"] = {
    "architectures": ["Gemma4UnifiedForConditionalGeneration"],
    "model_type": "gemma4_unified",
    "text_config": {
        key: value for key, value in GEMMA4_TEXT.items() if not key.endswith("per_layer_input")
    }
    | {"model_type": "gemma4_unified_text", "use_bidirectional_attention": "vision"},
    "vision_config": {
        "model_type": "gemma4_unified_vision",
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "mm_embed_dim": 48,
        "mm_posemb_size": 24,
        "output_proj_dims": 48,
    },
    "audio_config": None,
    "image_token_id": IMAGE,
    "boi_token_id": 251,
    "eoi_token_id": 252,
}
# Height and width of the pictures of a case, in the order in which a text has them.
SIZES: dict[str, list[tuple[int, int]]] = {
    "idefics3": [(32, 32)] * 4,
    "smolvlm": [(54, 54)] * 4,
    "gemma3": [(32, 32)] * 4,
    "qwen3_5": [(32, 40), (8, 48), (8, 8), (40, 56)],
    "qwen3_vl": [(24, 32), (48, 8), (8, 8), (40, 56)],
    "gemma4": [(24, 36), (12, 48), (36, 12), (60, 84)],
    "gemma4_large": [(24, 36), (12, 48), (36, 12), (36, 60)],
    "gemma4_unified": [(24, 36), (12, 48), (36, 12), (36, 60)],
    "lfm2_vl": [(24, 40), (32, 16), (8, 8), (40, 56)],
    "mistral3": [(24, 40), (8, 48), (16, 8), (40, 56)],
}
# Squares, three to one either way, one token, and as large as the positions that were learned, or
# as the preprocessor lets them be.
QWEN_SIZES = [(48, 48), (24, 72), (72, 24), (8, 8), (16, 128), (96, 96)]
MORE_SIZES: dict[str, list[tuple[int, int]]] = {
    "qwen3_5": QWEN_SIZES,
    "qwen3_vl": QWEN_SIZES,
    "gemma4": [(36, 36), (36, 108), (108, 36), (12, 12), (12, 252), (252, 12)],
    "gemma4_large": [(36, 36), (36, 108), (108, 36), (12, 12), (12, 252), (252, 12)],
    "gemma4_unified": [(36, 36), (36, 108), (108, 36), (12, 12), (12, 288), (288, 12)],
    "lfm2_vl": [(24, 24), (16, 48), (48, 16), (8, 8), (48, 48), (8, 72)],
    # transformers cannot make one token alone.
    "mistral3": [(48, 48), (16, 48), (48, 16), (8, 16), (64, 64), (64, 8)],
}
TEXT_BEFORE = (5, 3, 2, 4)  # tokens before each picture; two side by side would be one to some
TEXT_AFTER = 9
COUNTS = (1, 2, 4)  # pictures of a text


def written(name: str) -> dict[str, Any]:
    """Return what transformers writes of a case: config.json, and the shapes of tensors."""
    found: dict[str, Any] = json.loads((GOLDEN / "towers.json").read_text())[name]
    return found


def tower_model(name: str) -> FamilyModel:
    """Return a case's model, always the same bits."""
    return model_of(name, written(name))


def picture(number: int, height: int, width: int) -> Pixels:
    """Return a picture of ramps, edges and noise; the same bits on every machine."""
    y, x, c = np.indices((height, width, 3), np.int64)
    ramp = (7 * y + 5 * x * (number + 1) + 60 * c) // 3
    edge = ((y // 5 + x // (6 + number)) % 2) * 70
    noise = (np.arange(height * width * 3).reshape(y.shape) * 2654435761 >> 13) % 64
    return ((ramp + edge + noise) % 256).astype(np.uint8)


def pictures(name: str) -> list[Pixels]:
    """Return the pictures of a case."""
    return [picture(number, *size) for number, size in enumerate(SIZES[name])]


def more_pictures(name: str) -> list[Pixels]:
    """Return pictures of other shapes, for towers that take them."""
    sizes = MORE_SIZES.get(name, [])
    return [picture(number, *size) for number, size in enumerate(sizes)]


def prompt_with(rows: list[int]) -> tuple[list[int], list[int]]:
    """Return token ids with so many placeholders for each picture, and where each begins."""
    ids: list[int] = []
    firsts = []
    for number, count in enumerate(rows):
        ids += [(37 * i + 11 * number) % 200 + 2 for i in range(TEXT_BEFORE[number])]
        firsts.append(len(ids))
        ids += [IMAGE] * count
    return [*ids, *((53 * i) % 200 + 2 for i in range(TEXT_AFTER))], firsts


def positions_with(firsts: list[int], grids: list[tuple[int, int]], n: int) -> NDArray[np.uint32]:
    """Return the three positions of ``n`` tokens, of which pictures have grids of rows."""
    found, at, token = np.zeros((3, n), np.uint32), 0, 0
    for first, (height, width) in zip(firsts, grids, strict=True):
        before = first - token
        found[:, token:first] = at + np.arange(before)
        at, token = at + before, first + height * width
        y, x = np.indices((height, width))
        found[:, first:token] = [np.full(y.size, at), at + y.ravel(), at + x.ravel()]
        at += max(height, width)
    found[:, token:] = at + np.arange(n - token)
    return found
