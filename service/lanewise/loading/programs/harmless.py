"""Refuses fields of model files that the references read and we do not; logs other unread ones.

The references are transformers and llama.cpp. To ignore a field that changes the mathematics gives
answers that are almost right; a field that no reference reads cannot do so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lanewise.loading.base.json_files import Fields
from lanewise.loading.programs import reference

logger = logging.getLogger(__name__)

# Fields that transformers reads without effect on answers: how it computes, what it returns,
# training.
HF_HARMLESS = {
    *("add_cross_attention", "chunk_size_feed_forward", "is_encoder_decoder", "use_cache"),
    *("dtype", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
    *("num_labels", "problem_type", "num_logits_to_keep", "deterministic_flash_attn"),
    *("embedding_initializer_range", "initializer_range"),
    *("chunk_size", "mamba_chunk_size", "use_mamba_kernels"),
}
HF_PATTERNS = re.compile(r".*_(token_ids?|token_index|dropout|dropout_prob|pdrop|loss_coef)")

# Keys that llama.cpp reads and that our tensors tell, or nothing needs.
GGUF_HARMLESS = {
    *("vocab_size", "rope.scaling.finetuned", "block_count"),
    *("expert_shared_count", "leading_dense_block_count", "interleave_moe_layer_step"),
}
NOTHING = (0, False)
SWA = "_swa"  # suffix of keys for windowed layers, which may repeat the value of all layers
# Values that ask for what is computed anyway.
GGUF_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "expert_weights_scale": (0, 1),
    "rope.scaling.alpha": (0, 1),
}


def refuse_unknown_config(fields: Fields, harmless: Collection[str]) -> None:
    """Raise ModelFileError for a field of a config.json that matters and was not read.

    ``harmless`` names fields that the family's reference reads without effect on answers.
    """
    meanings = fields.meanings

    def is_odd(key: str, value: Any) -> bool:
        known = key in HF_HARMLESS or key in harmless or HF_PATTERNS.fullmatch(key)
        return key in meanings and not known and not is_neutral(value, meanings[key])

    refuse_unread(fields, is_odd)


def refuse_unknown_settings(settings: Fields, kind: str) -> None:
    """Raise ModelFileError for a RoPE setting that matters for its type and was not read."""
    names = reference.rope_settings(kind)
    refuse_unread(settings, lambda key, value: key in names and not is_neutral(value, None))


def refuse_unknown_metadata(fields: Fields, arch: str) -> None:
    """Raise ModelFileError for an architecture's key that matters and was not read."""
    prefix = f"{arch}."
    names = reference.gguf_keys(arch)

    def is_odd(key: str, value: Any) -> bool:
        name = key.removeprefix(prefix)
        if name in GGUF_HARMLESS or name not in names:
            return False
        is_general = key.endswith(SWA) and value == fields.values.get(key.removesuffix(SWA))
        return not is_general and value not in GGUF_NEUTRAL.get(name, NOTHING)

    refuse_unread(fields, is_odd, prefix)


def is_neutral(value: Any, meant: Any) -> bool:
    """Return whether a value equals the meaning of leaving the field out."""
    return bool(value == meant) or (not value and not meant)


def refuse_unread(fields: Fields, is_odd: Callable[[str, Any], bool], prefix: str = "") -> None:
    """Refuse unread fields for which ``is_odd`` holds, and log the other unread ones."""
    unread = [key for key in fields.unread() if key.startswith(prefix)]
    odd = [key for key in unread if is_odd(key, fields.values[key])]
    if odd:
        raise fields.unknown(odd[0], odd[1:4])
    if unread:
        logger.debug("%s: no answer depends on %s", fields.source, ", ".join(sorted(unread)))
