"""Nemotron H: each layer is Mamba 2, attention without positions, a plain FFN, or experts.

No FFN is gated. Experts may work in a latent space, as in Nemotron 3 Super and Ultra.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import (
    Experts,
    Layer,
    ModelConfig,
    Plain,
)
from lanewise.loading.base.recurrences import Ssd
from lanewise.loading.families import mamba2
from lanewise.loading.families.common import attention_of, model_of, trunk_layers_of
from lanewise.loading.families.experts import (
    EPS,
    experts_of,
    first_sparse_layer,
    flatten_gguf_experts,
    rename_shared,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.states import check_no_bias, gguf_heads, give, own_kinds
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

# Letters of hybrid_override_pattern and both spellings of layers_block_type.
KINDS = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), "mamba"),
    **dict.fromkeys(("*", "attention", "full_attention"), "attention"),
    **dict.fromkeys(("-", "mlp"), "mlp"),
    **dict.fromkeys(("E", "moe"), "experts"),
}
CURVE = "relu_squared"
MTP = "mtp."  # multi-token prediction tensors
HARMLESS = (
    *("time_step_min", "time_step_max", "time_step_floor", "num_hidden_layers", "expand"),
    *(
        "mtp_layers_block_type",
        "mtp_hybrid_override_pattern",
    ),  # of layers that guess further tokens
    # Fields of FFNs and experts that the model may have in no layer.
    *("intermediate_size", "n_routed_experts", "moe_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "moe_latent_size", "num_experts_per_tok"),
    *("n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"),
)
NAMES = {
    "q_proj.weight": Role.ATTN_Q,
    "k_proj.weight": Role.ATTN_K,
    "v_proj.weight": Role.ATTN_V,
    "o_proj.weight": Role.ATTN_OUTPUT,
    "up_proj.weight": Role.FFN_UP,
    "down_proj.weight": Role.FFN_DOWN,
    "gate.weight": Role.ROUTER,
    "gate.e_score_correction_bias": Role.ROUTER_CHOICE_BIAS,
    "fc1_latent_proj.weight": Role.EXPERTS_IN,
    "fc2_latent_proj.weight": Role.EXPERTS_OUT,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    file, kinds = gguf_kinds(file) if file.is_gguf else (file, hf_kinds(file, len(file.tensors)))
    check_curve(file)
    state = mamba2.state_of(file) if file.is_gguf else hf_state(file)
    attention = replace(attention_of(file), rope=None)
    made = {"attention": Layer(attention, None), "mamba": Layer(None, None, state=state)}
    if "mlp" in kinds:
        made["mlp"] = Layer(None, Plain(file.integer("intermediate_size"), activation=CURVE))
    if "experts" in kinds:
        made["experts"] = Layer(None, own_experts(file))
    layers = [made[kind] for kind in kinds]
    eps = "layer_norm_epsilon"
    return model_of(file, "nemotron_h", layers, own_kinds=True, eps=eps)


def gguf_kinds(file: ModelFile) -> tuple[ModelFile, list[str]]:
    """Return a GGUF file with one number for all layers, and each layer's kind by its numbers.

    A layer with neither KV heads nor an FFN has a state. Multi-token prediction layers, which are
    counted at the end, are left out.
    """
    alike, has_attention = gguf_heads(file)
    name, n_layers = "intermediate_size", len(has_attention)
    sizes = file.raw(name)
    if not isinstance(sizes, list) or len(sizes) != n_layers:
        raise file.fail(name, f"{n_layers} numbers, 0 for no FFN")
    known = [size for size in sizes if size != 0]
    if known != known[:1] * len(known):
        raise file.fail(name, f"{n_layers} numbers, 0 or one other")
    alike = alike.replacing({name: known[0] if known else 1})
    file.ignore("{arch}.rope.scaling.finetuned")
    eps = file.raw("layer_norm_eps")  # files without an epsilon for RMSNorm
    if not file.is_set("rms_norm_eps"):
        alike = alike.replacing({"rms_norm_eps": eps})
    ffn = "experts" if file.has(Role.ROUTER, first_sparse_layer(file)) else "mlp"
    return alike, [
        "attention" if attends else "mamba" if size == 0 else ffn
        for attends, size in zip(has_attention, sizes, strict=True)
    ][: trunk_layers_of(file)]


def own_experts(file: ModelFile) -> Experts:
    """Return the experts that a file describes, and the shared one."""
    if file.integer("n_shared_experts", default=1) != 1:
        raise file.fail("n_shared_experts", "1")
    shared = "moe_shared_expert_intermediate_size"
    return experts_of(
        *(file, "sigmoid", file.flag("norm_topk_prob", default=not file.is_gguf)),
        n="n_routed_experts",
        choice_bias=True,
        groups=file.integer("n_group", default=1),
        groups_used=file.integer("topk_group", default=1),
        denominator_eps=EPS,
        scale=round_to_f32(file.number("routed_scaling_factor", default=1.0)),
        activation=CURVE,
        shared_size=0 if file.is_gguf else file.integer(shared),
        gated=False,
        latent_size=file.integer("moe_latent_size", default=0, least=0),
    )


def hf_kinds(file: ModelFile, most: int) -> list[str]:
    """Return each layer's kind, from a string of letters or a list of names."""
    key = "hybrid_override_pattern"
    if file.is_set(key):
        found = list(file.text(key))
    else:
        key = "layers_block_type" if file.is_set("layers_block_type") else "layer_types"
        if not isinstance(values := file.raw(key), list):
            raise file.fail(key, "a kind for each layer, or hybrid_override_pattern,")
        found = own_kinds(file, key, tuple(KINDS), len(values))
    if not found or len(found) > most or not all(kind in KINDS for kind in found):
        raise file.fail(key, f"at most {most} of {', '.join(map(repr, KINDS))}")
    return [KINDS[kind] for kind in found]


def hf_state(file: ModelFile) -> Ssd:
    """Return the state that a config describes."""
    mamba2.check_steps(file)
    check_no_bias(file, "use_bias", "mamba_proj_bias")
    if file.text("mamba_hidden_act", default="silu") != "silu":
        raise file.fail("mamba_hidden_act", "'silu'")
    n_heads, value_dim, n_key_heads = (
        file.integer(key, default=default)
        for key, default in (("mamba_num_heads", 128), ("mamba_head_dim", 64), ("n_groups", 8))
    )
    if n_heads % n_key_heads:
        raise file.fail("n_groups", f"a divisor of the number of heads, {n_heads},")
    return Ssd(
        taps=file.integer("conv_kernel", default=4),
        n_heads=n_heads,
        value_dim=value_dim,
        n_key_heads=n_key_heads,
        key_dim=file.integer("ssm_state_size", default=128),
        norm_size=n_heads * value_dim // n_key_heads,
        conv_bias=file.flag("use_conv_bias", default=True),
    )


def check_curve(file: ModelFile) -> None:
    """Raise ModelFileError for other activations than the family's, and for biases of FFNs."""
    if file.text("mlp_hidden_act", default="relu2") != "relu2":
        raise file.fail("mlp_hidden_act", "'relu2'")
    check_no_bias(file, "mlp_bias")


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
    tensors.drop(*(name for name in tensors.out if name.startswith(MTP)))
    tensors.rename("model.norm_f.weight", tensors.usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        norm = Role.ATTN_NORM if layer.ffn is None else Role.FFN_NORM
        give(tensors, f"{folder}.norm.weight", norm, number)
        if isinstance(layer.state, Ssd):
            mamba2.hf_mixer(tensors, f"{folder}.mixer", layer.state, number)
        if isinstance(layer.ffn, Experts):
            stack_hf_experts(tensors, number, layer.ffn, "mixer.experts")
            rename_shared(tensors, number, "mixer.shared_experts")
        for name, role in NAMES.items():
            give(tensors, f"{folder}.mixer.{name}", role, number)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; every layer's norm is named attention's. Drop multi-token prediction."""
    tensors.drop_layers_from(config.n_layers)
    flatten_gguf_experts(tensors, config)
    mamba2.gguf_mixers(tensors, config)
    for number, layer in enumerate(config.layers):
        if layer.ffn is not None:
            name = tensors.usual(Role.ATTN_NORM, number)
            tensors.rename(name, tensors.usual(Role.FFN_NORM, number))


FAMILY = Family(
    "nemotron_h",
    program,
    "nemotron_h",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    gguf_is_usual=False,
    harmless=HARMLESS,
)
