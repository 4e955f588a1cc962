"""What BERTs with RoPE in the place of learned positions have in common.

Their files, those that transformers writes among them, have their makers' names of tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_n_layers
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    POOLER,
    classifier_pooling,
    encoder_attention,
    give_roles,
    layers_after,
    norm_eps,
    plain_names,
    usual,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Gated, ModelConfig, Plain
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.rope import read_rope
from lanewise.loading.sources import Sources

PREFIXES = ("nomic_bert.", "gte.", "new.", "roberta.", "bert.")
# Their makers' names of tensors, as transformers has them.
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
OF_LAYER: Mapping[str, tuple[Role, Role]] = {
    "self_attn.q_proj": (Role.ATTN_Q, Role.ATTN_Q_BIAS),
    "self_attn.k_proj": (Role.ATTN_K, Role.ATTN_K_BIAS),
    "self_attn.v_proj": (Role.ATTN_V, Role.ATTN_V_BIAS),
    "self_attn.o_proj": (Role.ATTN_OUTPUT, Role.ATTN_OUTPUT_BIAS),
    "post_attention_layernorm": (Role.FFN_NORM, Role.FFN_NORM_BIAS),
    "mlp.gate_proj": (Role.FFN_GATE, Role.FFN_GATE_BIAS),
    "mlp.up_proj": (Role.FFN_UP, Role.FFN_UP_BIAS),
    "mlp.down_proj": (Role.FFN_DOWN, Role.FFN_DOWN_BIAS),
    "mlp.fc1": (Role.FFN_UP, Role.FFN_UP_BIAS),
    "mlp.fc2": (Role.FFN_DOWN, Role.FFN_DOWN_BIAS),
}
ROTARY = ("rope", "rotary")  # what configs call that kind of positions
UNUSED_PREFIXES = ("cls.", "lm_head.", "pooler.")


def rotary_model(
    fields: Fields, sources: Sources, name: str, ffn: Gated | Plain, bias: bool, theta: float
) -> ModelConfig:
    """Return the whole of a model; ``theta`` is what it has where its config does not say."""
    positions = fields.text("position_embedding_type", default=ROTARY[0])
    if positions not in ROTARY:
        raise fields.fail("position_embedding_type", " or ".join(map(repr, ROTARY)))
    attention = encoder_attention(fields, rope=0, bias=bias)
    rope, context = read_rope(fields, attention.head_dim, theta)
    if fields.integer("head_dim", default=attention.head_dim) != attention.head_dim:
        raise fields.fail("head_dim", str(attention.head_dim))
    tensors = plain_names(sources, PREFIXES)
    return ModelConfig(
        architecture=name,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=norm_eps(fields),
        tied_embeddings=True,
        ropes=(rope,),
        layers=layers_after(attention, ffn, hf_n_layers(fields, sources)),
        norm="layer",
        norm_bias=True,
        pooling=classifier_pooling(tensors, fields.integer("hidden_size")),
        n_token_types=fields.integer("type_vocab_size", default=2, least=0),
    )


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; the norms after additions are those before the next."""
    named = {}
    for name, tensor in plain_names(sources, PREFIXES).items():
        for pattern, new in RENAMED.items():
            name = re.sub(pattern, new, name)
        named[name] = tensor
    tensors = Rearranged(named)
    tensors.rename("embeddings.word_embeddings.weight", usual(Role.TOKEN_EMBEDDING))
    tensors.rename("embeddings.token_type_embeddings.weight", usual(Role.TOKEN_TYPE_EMBEDDING))
    tensors.drop("embeddings.position_ids", "embeddings.token_type_ids")
    give_roles(tensors, "embeddings.LayerNorm", Role.ATTN_NORM, Role.ATTN_NORM_BIAS)
    for number, layer in enumerate(config.layers):
        folder = f"layers.{number}"
        rows = layer.attention.n_heads * layer.attention.head_dim
        for end in ("weight", "bias"):
            parts = {f"{folder}.self_attn.{x}_proj.{end}": rows for x in "qkv"}
            tensors.split_rows(f"{folder}.qkv.{end}", parts)
        if isinstance(layer.ffn, Gated):
            parts = {f"{folder}.mlp.{x}_proj.weight": layer.ffn.size for x in ("up", "gate")}
            tensors.split_rows(f"{folder}.mlp.up_gate.weight", parts)
        for name, roles in OF_LAYER.items():
            if name == "mlp.fc2" and isinstance(layer.ffn, Gated):
                roles = (Role.FFN_DOWN, Role.FFN_DOWN_BIAS)
            give_roles(tensors, f"{folder}.{name}", *roles, number)
        last = number + 1 == config.n_layers
        roles = (Role.OUTPUT_NORM, Role.OUTPUT_NORM_BIAS)
        if not last:
            roles = (Role.ATTN_NORM, Role.ATTN_NORM_BIAS)
        give_roles(tensors, f"{folder}.post_mlp_layernorm", *roles, 0 if last else number + 1)
    if config.pooling is not None and config.pooling.dense:
        for number, name in enumerate((POOLER, CLASSIFIER)):
            give_roles(tensors, name, Role.DENSE, Role.DENSE_BIAS, number)
    tensors.drop(*(name for name in list(tensors.out) if name.startswith(UNUSED_PREFIXES)))
    return tensors.out
