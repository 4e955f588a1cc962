"""Common parts of BERTs with RoPE in place of learned positions.

Their files, also in transformers' form, have the makers' tensor names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Gated, ModelConfig, Plain
from lanewise.loading.families.common import rope_of
from lanewise.loading.families.encoders import (
    classifier_pooling,
    encoder_attention,
    give_norm_after,
    give_outside_layers,
    post_norm_model,
)
from lanewise.loading.families.naming import QKV, give_roles, split_roles
from lanewise.loading.files.rearranging import Rearranged, without_prefixes
from lanewise.loading.programs.model_file import ModelFile

PREFIXES = ("nomic_bert.", "gte.", "new.", "roberta.", "bert.")
# The makers' tensor names to transformers'.
RENAMED = {
    r"^encoder\.layers?\.": "layers.",
    r"^emb_ln\.": "embeddings.LayerNorm.",
    r"\.(attn|mixer)\.out_proj\.": ".self_attn.o_proj.",
    r"\.attention\.o_proj\.": ".self_attn.o_proj.",
    r"\.mlp\.fc11\.": ".mlp.up_proj.",
    r"\.mlp\.fc12\.": ".mlp.gate_proj.",
    r"\.(norm1|attn_ln)\.": ".post_attention_layernorm.",
    r"\.(norm2|mlp_ln)\.": ".post_mlp_layernorm.",
    r"\.(attn|mixer)\.Wqkv\.": ".qkv.",
    r"\.attention\.qkv_proj\.": ".qkv.",
    r"\.mlp\.up_gate_proj\.": ".mlp.up_gate.",
}
OF_LAYER: Mapping[str, Role] = {
    "self_attn.q_proj": Role.ATTN_Q,
    "self_attn.k_proj": Role.ATTN_K,
    "self_attn.v_proj": Role.ATTN_V,
    "self_attn.o_proj": Role.ATTN_OUTPUT,
    "post_attention_layernorm": Role.FFN_NORM,
    "mlp.gate_proj": Role.FFN_GATE,
    "mlp.up_proj": Role.FFN_UP,
    "mlp.down_proj": Role.FFN_DOWN,
    "mlp.fc1": Role.FFN_UP,
    "mlp.fc2": Role.FFN_DOWN,
}
ROTARY = ("rope", "rotary")  # values of position_embedding_type


def rotary_model(
    file: ModelFile, name: str, ffn: Gated | Plain, bias: bool, theta: float
) -> ModelConfig:
    """Return the program; ``theta`` applies if the config does not say."""
    positions = file.text("position_embedding_type", default=ROTARY[0])
    if positions not in ROTARY:
        raise file.fail("position_embedding_type", " or ".join(map(repr, ROTARY)))
    attention = encoder_attention(file, rope=0, bias=bias)
    rope, context = rope_of(file, attention.head_dim, theta)
    if file.integer("head_dim", default=attention.head_dim) != attention.head_dim:
        raise file.fail("head_dim", str(attention.head_dim))
    pooling = classifier_pooling(
        without_prefixes(file.tensors, PREFIXES), file.integer("hidden_size")
    )
    return replace(
        post_norm_model(file, name, attention, ffn, context, pooling),
        ropes=(rope,),
        n_token_types=file.integer("type_vocab_size", default=2, least=0),
    )


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; the norm after a layer becomes the norm before the next one."""
    tensors.remove_prefixes(*PREFIXES)
    for name in list(tensors.out):
        new = name
        for pattern, by in RENAMED.items():
            new = re.sub(pattern, by, new)
        tensors.rename(name, new)
    give_outside_layers(tensors, config)
    for number, layer in enumerate(config.layers):
        folder = f"layers.{number}"
        for name, role in OF_LAYER.items():
            give_roles(tensors, f"{folder}.{name}", role, number)
        rows = config.heads.n_heads * config.heads.head_dim
        split_roles(tensors, f"{folder}.qkv", QKV, rows, number)
        if isinstance(layer.ffn, Gated):
            halves = (Role.FFN_UP, Role.FFN_GATE)
            parts = {tensors.usual(half, number): layer.ffn.size for half in halves}
            tensors.split_rows(f"{folder}.mlp.up_gate.weight", parts)
        give_norm_after(tensors, f"{folder}.post_mlp_layernorm", config, number)
