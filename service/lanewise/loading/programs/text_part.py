"""The language model of a multimodal model: its part of config.json, and its tensors."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.sources import Sources, SourceTensor

logger = logging.getLogger(__name__)

# Name prefixes of the language model's tensors.
PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("backbone.", "model."),  # of models that began with states
    ("model.embeddings.weight", "model.embed_tokens.weight"),
    # Other names of embeddings, so that they are not taken for a head.
    ("transformer.wte.weight", "model.embed_tokens.weight"),
    ("wte.weight", "model.embed_tokens.weight"),
    ("model.word_embeddings.weight", "model.embed_tokens.weight"),
    ("transformer.word_embeddings.weight", "model.embed_tokens.weight"),
    ("gpt_neox.embed_in.weight", "model.embed_tokens.weight"),
    ("embed.weight", "model.embed_tokens.weight"),  # DeepSeek V4
    ("embed_out.weight", "lm_head.weight"),
)
# Embedding models saved without their head have no prefix.
TRUNK, BARE_EMBEDDING = "model.", "embed_tokens.weight"
# Modules that are not the language model, perhaps inside of "model".
TOWERS = {
    *("vision_tower", "vision_model", "vision_encoder", "visual", "embed_vision", "image_newline"),
    "vision_embedder",
    *("audio_tower", "audio_model", "audio_encoder", "embed_audio", "multi_modal_projector"),
    "vit_large_projector",
    *(
        "connector",
        "mm_projector",
        "patch_merger",
        *("vision_language_adapter", "vision_adapter", "vision_projection"),
        "pre_mm_projector_norm",
    ),
}
# The language model of wrappers whose text_config does not name it.
DEFAULT_TYPES = {
    "mistral3": "mistral",
    "idefics3": "llama",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "llama4": "llama4_text",
    "llava": "llama",
    "embedding_gemma2": "embedding_gemma2_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "muse_glimmer": "muse_glimmer_text",
}


def text_fields(config: Fields) -> Fields:
    """Return the fields of the language model: text_config's if there is one.

    If the config does not say whether there is an output head, the tensors do.
    """
    text = config.raw("text_config")
    if text is None:
        return config
    if not isinstance(text, Mapping):
        raise config.fail("text_config", "an object")
    tied = config.raw("tie_word_embeddings")
    values = {"tie_word_embeddings": True} | dict(text)
    if tied is not None:  # it is the whole model that ties its head
        values["tie_word_embeddings"] = tied
    if values.get("model_type") is None:
        values["model_type"] = DEFAULT_TYPES.get(config.text("model_type"))
    return Fields(values, f"{config.source}: text_config")


def text_tensors(sources: Sources, where: str) -> dict[str, SourceTensor]:
    """Return the language model's tensors, named as in a model without the other parts."""
    found, skipped = {}, 0
    for name, tensor in sources.items():
        first, _, rest = name.removeprefix("model.").partition(".")
        if first in TOWERS and rest:
            skipped += 1
            continue
        for prefix, plain in PREFIXES:
            if name.startswith(prefix):
                name = plain + name.removeprefix(prefix)
        found[name] = tensor
    if BARE_EMBEDDING in found and TRUNK + BARE_EMBEDDING not in found:
        found = {
            name if name.startswith("lm_head.") else TRUNK + name: found[name] for name in found
        }
    if skipped:
        logger.info("%s: %d tensors of images or sound are left out", where, skipped)
    return found
