"""What a config.json and GGUF metadata may say that nobody reads; the rest is refused by name.

A field that changes the mathematics and is passed over gives answers that are almost right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.json_files import Fields

# Of the file, of training, of other programs and of drawing tokens.
HF_HARMLESS = {
    *("model_type", "architectures", "auto_map", "name_or_path", "transformers_version"),
    *("torch_dtype", "dtype", "quantization_config", "compression_config", "use_cache"),
    *("initializer_range", "initializer_factor", "init_std", "pretraining_tp", "ep_size"),
    *("output_router_logits", "output_attentions", "output_hidden_states", "return_dict"),
    *("attention_probs_dropout_prob", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux"),
    *("use_bfloat16", "torchscript", "pruned_heads", "chunk_size_feed_forward"),
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *("task_specific_params", "tokenizer_class", "prefix", "tf_legacy_loss"),
    *("bos_token", "eos_token", "pad_token", "model_max_length", "vocab_size"),
    *("attn_implementation", "use_flash_attn", "use_flash_attn_2", "use_fused_rmsnorm"),
    *("do_sample", "temperature", "top_k", "top_p", "typical_p", "min_length", "max_length"),
    *("num_beams", "num_beam_groups", "diversity_penalty", "early_stopping", "suppress_tokens"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("encoder_no_repeat_ngram_size", "num_return_sequences", "begin_suppress_tokens"),
    *("output_scores", "return_dict_in_generate", "remove_invalid_values", "exponential_decay"),
    *("exponential_decay_length_penalty", "is_llama_config", "original_max_position_embeddings"),
    *("ignored_index", "training_dtype", "mlp_type", "layer_norm_type"),
}
HF_PATTERNS = re.compile(
    r"_.*|unsloth_.*|transformers\.js.*|.*_(token_ids?|token_index|dropout|dropout_prob|pdrop)"
    r"|.*_(loss_coef|loss_alpha|loss_coefficient)"
)
# Values that mean what is done anyway.
HF_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "qkv_bias": (False,),
    "use_bias": (False,),
    "lm_head_bias": (False,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "logits_scaling": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "norm_topk_prob": (True,),
    "scoring_func": ("softmax",),
    "hidden_activation": ("silu",),
    "activation": ("silu",),
    "use_cache_quantization": (False,),
    "num_nextn_predict_layers": (0,),
}

GGUF_HARMLESS = {
    *("vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "block_count"),
    *("expert_shared_count", "leading_dense_block_count", "interleave_moe_layer_step"),
}
NOTHING = (0, False)
GGUF_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "expert_weights_scale": (0, 1),
} | dict.fromkeys(
    (
        *("expert_count", "expert_used_count", "expert_feed_forward_length"),
        *("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping"),
        *("attention.clamp_kqv", "attention.scale", "attention.max_alibi_bias"),
        *("attention.sliding_window", "attention.temperature_scale", "nextn_predict_layers"),
        *("expert_shared_feed_forward_length", "expert_group_count", "expert_group_used_count"),
    ),
    NOTHING,
)


def refuse_unknown_config(fields: Fields, harmless: Iterable[str]) -> None:
    """Raise ModelFileError for fields of a config.json that nobody read or knows as harmless."""
    known = {*HF_HARMLESS, *harmless}
    odd = [
        key
        for key in fields.unread()
        if key not in known
        and not HF_PATTERNS.fullmatch(key)
        and not _is_one_of(fields.values[key], HF_NEUTRAL.get(key, ()))
    ]
    _refuse(fields, odd)


def refuse_unknown_metadata(fields: Fields, arch: str) -> None:
    """Raise ModelFileError for keys of an architecture that nobody read or knows as harmless."""
    prefix = f"{arch}."
    odd = []
    for key in fields.unread():
        name = key.removeprefix(prefix)
        if (
            key.startswith(prefix)
            and name not in GGUF_HARMLESS
            and not _is_one_of(fields.values[key], GGUF_NEUTRAL.get(name, ()))
        ):
            odd.append(key)
    _refuse(fields, odd)


def _is_one_of(value: Any, accepted: tuple[Any, ...]) -> bool:
    return isinstance(value, bool | int | float | str) and value in accepted


def _refuse(fields: Fields, odd: list[str]) -> None:
    if odd:
        raise ModelFileError(
            f"{fields.fail(odd[0], 'a field that is known here')}: it may change the answers"
            + (f"; as may {', '.join(odd[1:4])}" if len(odd) > 1 else "")
        )
