"""Nemotron H: layers of one part each: Mamba 2, attention without positions, or a plain FFN."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.families import mamba2
from lanewise.loading.families.common import hf_attention, hf_model
from lanewise.loading.families.encoders import usual
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.states import gguf_heads, give, own_kinds
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Layer, ModelConfig, Plain, Ssd
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

# Letters of hybrid_override_pattern and both spellings of layers_block_type.
KINDS = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), "mamba"),
    **dict.fromkeys(("*", "attention", "full_attention"), "attention"),
    **dict.fromkeys(("-", "mlp"), "mlp"),
}
EXPERTS = ("E", "moe")
HARMLESS = (
    *mamba2.HARMLESS,
    *("num_hidden_layers", "expand", "residual_in_fp32", "rescale_prenorm_residual"),
    *("num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype", "attention_head_dim"),
    *("is_nemotron", "rms_norm_eps"),
    # Of layers of experts, which no model has that gets so far.
    *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "n_group", "topk_group"),
    *("moe_shared_expert_intermediate_size", "moe_latent_size", "moe_shared_expert_overlap"),
    *("num_experts_per_tok", "routed_scaling_factor", "mtp_layers_block_type", "norm_topk_prob"),
)
NAMES = {
    "q_proj.weight": Role.ATTN_Q,
    "k_proj.weight": Role.ATTN_K,
    "v_proj.weight": Role.ATTN_V,
    "o_proj.weight": Role.ATTN_OUTPUT,
    "up_proj.weight": Role.FFN_UP,
    "down_proj.weight": Role.FFN_DOWN,
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    kinds = hf_kinds(fields, len(sources))
    attention = replace(hf_attention(fields, sources, head_dim=128), rope=None)
    layers = layers_of(kinds, Layer(attention, None), hf_state(fields), hf_plain(fields))
    eps = "layer_norm_epsilon"
    return hf_model(fields, "nemotron_h", layers, own_kinds=True, eps=eps)


def layers_of(kinds: list[str], attention: Layer, state: Ssd, plain: Plain) -> list[Layer]:
    """Return layers of these kinds."""
    made = {
        "attention": attention,
        "mamba": Layer(None, None, state=state),
        "mlp": Layer(None, plain),
    }
    return [made[kind] for kind in kinds]


def hf_kinds(fields: Fields, most: int) -> list[str]:
    """Return each layer's kind: by a text of letters, or a list of names."""
    key = "hybrid_override_pattern"
    if fields.is_set(key):
        found = list(fields.text(key))
    else:
        key = "layers_block_type" if fields.is_set("layers_block_type") else "layer_types"
        if not isinstance(values := fields.raw(key), list):
            raise fields.fail(key, "a kind for each layer, or hybrid_override_pattern,")
        found = own_kinds(fields, key, (*KINDS, *EXPERTS), len(values))
    if any(kind in EXPERTS for kind in found):
        raise ModelFileError(
            f"{fields.source}: {key}: experts without a gate are not supported; layers of Mamba 2,"
            " attention and dense FFNs are accepted"
        )
    if not found or len(found) > most or not all(kind in KINDS for kind in found):
        raise fields.fail(key, f"at most {most} of {', '.join(map(repr, KINDS))}")
    return [KINDS[kind] for kind in found]


def hf_state(fields: Fields) -> Ssd:
    """Return the state that a config describes."""
    mamba2.check_steps(fields)
    mamba2.check_no_bias(fields, "use_bias", "mamba_proj_bias")
    if fields.text("mamba_hidden_act", default="silu") != "silu":
        raise fields.fail("mamba_hidden_act", "'silu'")
    n_heads, value_dim, n_key_heads = (
        fields.integer(key, default=default)
        for key, default in (("mamba_num_heads", 128), ("mamba_head_dim", 64), ("n_groups", 8))
    )
    if n_heads % n_key_heads:
        raise fields.fail("n_groups", f"a divisor of the number of heads, {n_heads},")
    return Ssd(
        taps=fields.integer("conv_kernel", default=4),
        n_heads=n_heads,
        value_dim=value_dim,
        n_key_heads=n_key_heads,
        key_dim=fields.integer("ssm_state_size", default=128),
        norm_size=n_heads * value_dim // n_key_heads,
        conv_bias=fields.flag("use_conv_bias", default=True),
    )


def hf_plain(fields: Fields) -> Plain:
    """Return the FFN that a config describes."""
    if fields.text("mlp_hidden_act", default="relu2") != "relu2":
        raise fields.fail("mlp_hidden_act", "'relu2'")
    mamba2.check_no_bias(fields, "mlp_bias")
    return Plain(fields.integer("intermediate_size"), activation="relu_squared")


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    tensors = Rearranged(sources)
    tensors.rename("model.norm_f.weight", usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        norm = Role.ATTN_NORM if layer.ffn is None else Role.FFN_NORM
        give(tensors, f"{folder}.norm.weight", norm, number)
        if isinstance(layer.state, Ssd):
            mamba2.hf_mixer(tensors, f"{folder}.mixer", layer.state, number)
        for name, role in NAMES.items():
            give(tensors, f"{folder}.mixer.{name}", role, number)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; what has neither KV heads nor an FFN has a state."""
    n_layers, arch = gguf_n_layers(fields, sources), arch_of(fields)
    attending, has_attention = gguf_heads(fields, n_layers)
    key = f"{arch}.feed_forward_length"
    sizes = fields.raw(key)
    if not isinstance(sizes, list) or len(sizes) != n_layers:
        raise fields.fail(key, f"{n_layers} numbers, 0 for no FFN")
    known = [size for size in sizes if size != 0]
    if known != known[:1] * len(known):
        raise fields.fail(key, f"{n_layers} numbers, 0 or one other")
    size = fields.replacing({key: known[0] if known else 1}).integer(key)
    kinds = [
        "attention" if attends else "mamba" if size == 0 else "mlp"
        for attends, size in zip(has_attention, sizes, strict=True)
    ]
    attention = Layer(replace(gguf_attention(attending, sources), rope=None), None)
    state = mamba2.gguf_state(fields, mamba2.has_conv_bias(sources))
    layers = layers_of(kinds, attention, state, Plain(size, activation="relu_squared"))
    eps = fields.raw(f"{arch}.attention.layer_norm_epsilon")
    rms = f"{arch}.attention.layer_norm_rms_epsilon"
    fields.ignore(f"{arch}.rope.scaling.finetuned", rms)
    if not fields.is_set(rms):
        fields = fields.replacing({rms: eps})
    return gguf_model(fields, sources, "nemotron_h", layers)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; every layer's norm is called attention's."""
    tensors = Rearranged(sources)
    mamba2.gguf_mixers(tensors, config)
    for number, layer in enumerate(config.layers):
        if layer.ffn is not None:
            name = usual(Role.ATTN_NORM, number, GGUF)
            tensors.rename(name, usual(Role.FFN_NORM, number, GGUF))
    return tensors.out


FAMILY = Family(
    "nemotron_h",
    from_hf,
    "nemotron_h",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    gguf_is_usual=False,
    harmless=HARMLESS,
)
