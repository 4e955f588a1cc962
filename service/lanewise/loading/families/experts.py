"""Layers of experts: what files say of them, and how their tensors become one matrix each."""

from __future__ import annotations

from collections.abc import Sequence

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import check_activation, has, hf_gated, hf_n_layers
from lanewise.loading.families.gguf import arch_of, gguf_gated, gguf_uniform
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, HF, TENSOR_NAMES
from lanewise.loading.program import Attention, Experts, Gated, Layer, ModelConfig
from lanewise.loading.rearranging import Bytes, Rearranged
from lanewise.loading.sources import Sources

GATING = {1: "softmax", 2: "sigmoid", 3: "top_softmax"}  # of GGUF's expert_gating_func
EXPERT_ROLES = (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN)
PARTS = ("gate_proj", "up_proj", "down_proj")
EPS = round_to_f32(1e-20)  # beside the sum that weights of routed experts are divided by


def sparse_layers(
    attention: Attention, experts: Experts, gated: Gated | None, is_sparse: Sequence[bool]
) -> list[Layer]:
    """Return layers of experts where ``is_sparse`` says so, and gated ones elsewhere."""
    assert gated is not None or all(is_sparse)
    dense = experts if gated is None else gated
    both = Layer(attention, dense), Layer(attention, experts)
    return [both[sparse] for sparse in is_sparse]


def hf_name(role: Role, layer: int) -> str:
    """Return the usual name of a layer's tensor."""
    return TENSOR_NAMES[role][HF].format(layer)


def gguf_name(role: Role, layer: int) -> str:
    """Return the usual name of a layer's tensor in GGUF files."""
    return TENSOR_NAMES[role][GGUF].format(layer)


def layers_of_experts(config: ModelConfig) -> list[tuple[int, Experts]]:
    """Return the numbers of layers that are experts, and what they are."""
    return [
        (number, layer.ffn)
        for number, layer in enumerate(config.layers)
        if isinstance(layer.ffn, Experts)
    ]


def first_half(rows: Bytes) -> Bytes:
    """Return gate of [experts, gate and up, bytes]."""
    return rows[:, : rows.shape[1] // 2]


def second_half(rows: Bytes) -> Bytes:
    """Return up of [experts, gate and up, bytes]."""
    return rows[:, rows.shape[1] // 2 :]


def stack_hf_experts(
    tensors: Rearranged,
    layer: int,
    experts: Experts,
    folder: str = "mlp.experts",
    names: Sequence[str] = PARTS,
) -> None:
    """Make one matrix of each of gate, up and down: of one for each expert, or of stacked ones.

    ``names`` are those of gate, up and down of one expert in ``folder``; not all have a gate.
    """
    prefix = f"model.layers.{layer}.{folder}"
    for role, name in zip(EXPERT_ROLES, names, strict=True):
        each = [f"{prefix}.{number}.{name}.weight" for number in range(experts.n)]
        tensors.stack(each, hf_name(role, layer))
    fused = f"{prefix}.gate_up_proj"
    gate, up, down = (hf_name(role, layer) for role in EXPERT_ROLES)
    tensors.split_experts(fused, {gate: first_half, up: second_half}, experts.size)
    tensors.flatten(f"{prefix}.up_proj", up)
    tensors.flatten(f"{prefix}.down_proj", down)


def stack_experts(sources: Sources, config: ModelConfig) -> Sources:
    """Do so in all layers, for files that have nothing else out of the usual."""
    tensors = Rearranged(sources)
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)
    return tensors.out


def gguf_experts(
    fields: Fields,
    sources: Sources,
    router: str,
    renormalize: bool,
    shared_gate: bool = False,
    denominator_least: float = 0.0,
    denominator_eps: float = 0.0,
) -> Experts:
    """Return the experts that GGUF metadata and tensors describe.

    ``router`` and ``renormalize`` are what the family has where the file does not say.
    """
    arch = arch_of(fields)
    key = f"{arch}.expert_gating_func"
    gating = fields.integer(key, default=0, least=0)
    if gating and GATING.get(gating) != router:
        raise fields.fail(key, next(str(n) for n, name in GATING.items() if name == router))
    first = first_sparse(sources)
    shared = sources.get(gguf_name(Role.SHARED_UP, first))
    size = gguf_uniform(fields, f"{arch}.feed_forward_length", default=1)
    fields.ignore(
        *(f"{arch}.{name}" for name in ("expert_shared_count", "leading_dense_block_count")),
        *(f"{arch}.{name}" for name in ("interleave_moe_layer_step", "moe_every_n_layers")),
        f"{arch}.expert_shared_feed_forward_length",  # the tensors say it
    )
    return Experts(
        n=fields.integer(f"{arch}.expert_count"),
        n_used=fields.integer(f"{arch}.expert_used_count"),
        size=fields.integer(f"{arch}.expert_feed_forward_length", default=size),
        router=router,
        router_bias=has(sources, Role.ROUTER_BIAS, GGUF, first),
        choice_bias=has(sources, Role.ROUTER_CHOICE_BIAS, GGUF, first),
        groups=fields.integer(f"{arch}.expert_group_count", default=0, least=0) or 1,
        groups_used=fields.integer(f"{arch}.expert_group_used_count", default=0, least=0) or 1,
        renormalize=fields.flag(f"{arch}.expert_weights_norm", default=renormalize),
        denominator_least=denominator_least,
        denominator_eps=denominator_eps,
        scale=round_to_f32(
            fields.number(f"{arch}.expert_weights_scale", default=0.0, zero=True) or 1.0
        ),
        bias=has(sources, Role.EXPERTS_GATE_BIAS, GGUF, first),
        shared_size=0 if shared is None else shared.shape[0],
        shared_gate=shared_gate,
    )


def gguf_sparse_layers(
    fields: Fields, sources: Sources, attention: Attention, experts: Experts, n_layers: int
) -> list[Layer]:
    """Return layers of experts where the file has a router, and gated ones elsewhere."""
    is_sparse = [has(sources, Role.ROUTER, GGUF, number) for number in range(n_layers)]
    return sparse_layers(attention, experts, gguf_gated(fields, sources), is_sparse)


def first_sparse(sources: Sources) -> int:
    """Return the first layer with experts; 0 if there is none."""
    numbers = range(len(sources))
    return next((n for n in numbers if has(sources, Role.ROUTER, GGUF, n)), 0)


def flatten_gguf_experts(sources: Sources, config: ModelConfig) -> Sources:
    """Make matrices of GGUF's [experts, rows, columns], and take gate and up apart."""
    tensors = Rearranged(sources)
    for layer, experts in layers_of_experts(config):
        choice_bias = gguf_name(Role.ROUTER_CHOICE_BIAS, layer)
        tensors.rename(f"blk.{layer}.exp_probs_b", choice_bias)
        tensors.flatten(choice_bias, dims=2)
        gate, up, _ = (gguf_name(role, layer) for role in EXPERT_ROLES)
        fused = f"blk.{layer}.ffn_gate_up_exps.weight"
        tensors.split_experts(fused, {gate: first_half, up: second_half}, experts.size)
        for role in EXPERT_ROLES:
            tensors.flatten(gguf_name(role, layer))
            tensors.flatten(gguf_name(Role[f"{role.name}_BIAS"], layer), dims=2)
        tensors.flatten(gguf_name(Role.SHARED_ROUTER, layer), dims=2)
    return tensors.out


def hf_count(fields: Fields) -> int:
    """Return the number of experts, which transformers has two names for."""
    other = fields.raw("num_local_experts")
    if not fields.is_set("num_experts") and other is not None:
        return fields.integer("num_local_experts")
    return fields.integer("num_experts")


def hf_shared_experts(fields: Fields, renormalize: bool) -> Experts:
    """Return experts beside a shared one behind a gate, as the models of Qwen have them.

    ``renormalize`` is what the family has where the file does not say.
    """
    check_activation(fields)
    return Experts(
        n=hf_count(fields),
        n_used=fields.integer("num_experts_per_tok"),
        size=fields.integer("moe_intermediate_size"),
        router="softmax",
        renormalize=fields.flag("norm_topk_prob", default=renormalize),
        shared_size=fields.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def hf_routed_experts(
    fields: Fields, router: str, renormalize: bool, groups: bool = True
) -> Experts:
    """Return the experts of a config.json of DeepSeek's kind.

    ``renormalize`` is what the family has where the file does not say; without ``groups`` the
    choice is not limited to some of them.
    """
    check_activation(fields)
    size = fields.integer("moe_intermediate_size")
    n_groups = fields.integer("n_group", default=1)
    groups_used = fields.integer("topk_group", default=1)
    return Experts(
        n=fields.integer("n_routed_experts"),
        n_used=fields.integer("num_experts_per_tok"),
        size=size,
        router=router,
        choice_bias=router == "sigmoid",
        groups=n_groups if groups else 1,
        groups_used=groups_used if groups else 1,
        renormalize=fields.flag("norm_topk_prob", default=renormalize),
        denominator_eps=EPS,
        scale=round_to_f32(fields.number("routed_scaling_factor", default=1.0)),
        shared_size=size * fields.integer("n_shared_experts", default=0, least=0),
    )


def hf_dense_first(
    fields: Fields, sources: Sources, attention: Attention, experts: Experts, first: int
) -> list[Layer]:
    """Return layers of a config.json that are experts from number ``first`` on, gated before."""
    is_sparse = [number >= first for number in range(hf_n_layers(fields, sources))]
    return sparse_layers(attention, experts, hf_gated(fields, sources), is_sparse)


def stack_routed_experts(tensors: Rearranged, config: ModelConfig) -> None:
    """Make matrices of all experts in "mlp", and name those that all rows have."""
    for number, experts in layers_of_experts(config):
        stack_hf_experts(tensors, number, experts)
        rename_shared(tensors, number, "mlp.shared_experts")


def rename_shared(tensors: Rearranged, layer: int, folder: str) -> None:
    """Give the shared expert's tensors in ``folder`` their usual names."""
    shared = (Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)
    for role, name in zip(shared, PARTS, strict=True):
        tensors.rename(f"model.layers.{layer}.{folder}.{name}.weight", hf_name(role, layer))
