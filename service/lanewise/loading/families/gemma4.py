"""Gemma 4: larger heads where there is no window, keys of others, inputs of each layer, experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.checks import check_heads
from lanewise.loading.families import gemma3
from lanewise.loading.families.common import (
    KINDS,
    check_values,
    curve,
    has,
    hf_attention,
    hf_kinds,
    hf_n_layers,
    hf_ropes_of_kinds,
)
from lanewise.loading.families.encoders import norm_eps
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    gguf_experts,
    layers_of_experts,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma import CURVE, cap, root_scale
from lanewise.loading.families.gguf import (
    ROPE_FACTORS,
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_rope,
    gguf_windows,
)
from lanewise.loading.families.naming import one_number, usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, HF
from lanewise.loading.program import Attention, Experts, Gated, Layer, ModelConfig, Rope
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

GLOBAL_HEAD_DIM, WINDOW, PERIOD = 512, 512, 6  # of configs that do not say
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
THETA_KEYS = dict.fromkeys(KINDS, "rope_theta")
MUST_BE = {
    "use_bidirectional_attention": (None, "vision"),
    "attention_bias": (False,),
}
HARMLESS = (
    *("num_experts", "top_k_experts", "moe_intermediate_size", "vocab_size_per_layer_input"),
)
# Of layers with experts.
OF_MIXTURE = {
    "router.proj.weight": Role.ROUTER,
    "router.scale": Role.ROUTER_NORM,
    "router.per_expert_scale": Role.ROUTER_SCALES,
    "pre_feedforward_layernorm_2.weight": Role.EXPERTS_NORM,
    "post_feedforward_layernorm_1.weight": Role.SHARED_RESULT_NORM,
    "post_feedforward_layernorm_2.weight": Role.EXPERTS_RESULT_NORM,
}
SHARED = {
    Role.FFN_GATE: Role.SHARED_GATE,
    Role.FFN_UP: Role.SHARED_UP,
    Role.FFN_DOWN: Role.SHARED_DOWN,
}
PER_LAYER_SIZE = 256  # of configs that do not say, where there is a table
# Of layers that read the keys and values of others, whose files may have them for nothing.
UNUSED = (Role.ATTN_K, Role.ATTN_V, Role.ATTN_K_NORM)


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_values(fields, MUST_BE)
    n_layers = hf_n_layers(fields, sources)
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % PERIOD < PERIOD - 1] for n in range(n_layers)]
    kinds[-1] = KINDS[0]  # whatever a file says, as the reference has it
    whole, windowed = hf_attentions(fields, sources, kinds)
    scales = [
        one_number(sources, f"model.layers.{number}.layer_scalar", fields.source)
        for number in range(n_layers)
    ]
    ropes, context = hf_ropes_of_kinds(
        fields, {KINDS[0]: whole.head_dim, KINDS[1]: windowed.head_dim}, THETA_KEYS, THETAS
    )
    n_own = n_layers - hf_n_sharing(fields, n_layers)
    attentions = with_shared_keys(
        [whole if kind == KINDS[0] else windowed for kind in kinds], n_own, fields.source
    )
    size = fields.integer("intermediate_size")
    wider = size * (2 if fields.flag("use_double_wide_mlp", default=False) else 1)
    activation = curve(fields, "hidden_activation", CURVE)
    ffns: list[Gated | Experts] = [
        Gated(size if n < n_own else wider, activation=activation) for n in range(n_layers)
    ]
    if fields.flag("enable_moe_block", default=False):
        ffns = [hf_mixture(fields, one) for one in ffns]
    table = has(sources, Role.PER_LAYER_EMBEDDING, HF)
    hidden = fields.integer("hidden_size")
    return ModelConfig(
        architecture="gemma4_text",
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=norm_eps(fields, "rms_norm_eps", 1e-6),
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        ropes=ropes,
        layers=layers_of(attentions, ffns, scales),
        embedding_scale=root_scale(hidden, sources),
        logit_softcap=cap(fields, "final_logit_softcapping", 0.0),
        per_layer_size=fields.integer(
            "hidden_size_per_layer_input", default=PER_LAYER_SIZE if table else 0, least=0
        ),
    )


def hf_mixture(fields: Fields, dense: Gated | Experts) -> Experts:
    """Return experts beside what is the FFN of all tokens elsewhere."""
    size = fields.integer("expert_intermediate_size", default=0, least=0)
    return Experts(
        n=fields.integer("num_experts"),
        n_used=fields.integer("top_k_experts"),
        size=fields.integer("moe_intermediate_size", default=size or None),
        router="softmax",
        renormalize=True,
        activation=dense.activation,
        shared_size=dense.size,
        own_norms=True,
    )


def hf_n_sharing(fields: Fields, n_layers: int) -> int:
    """Return how many of the last layers read the keys and values of others."""
    key = "num_kv_shared_layers"
    number = fields.integer(key, default=0, least=0)
    if number >= n_layers:
        raise fields.fail(key, f"a number below the number of layers, {n_layers},")
    return number


def with_shared_keys(attentions: Sequence[Attention], n_own: int, source: str) -> list[Attention]:
    """Return attention that from layer ``n_own`` on reads the keys of the last one of its kind."""
    last: dict[int | None, int] = {}
    found = []
    for number, attention in enumerate(attentions):
        if number < n_own:
            last[attention.window] = number
        elif attention.window not in last:
            raise ModelFileError(f"{source}: layer {number} has no layer of its kind with keys")
        else:
            attention = replace(
                attention,
                kv_layer=last[attention.window],
                values_are_keys=False,
                value_norm=False,
            )
        found.append(attention)
    return found


def hf_attentions(
    fields: Fields, sources: Sources, kinds: Sequence[str]
) -> tuple[Attention, Attention]:
    """Return attention that sees all, which may have other heads, and that with a window."""
    plain = hf_attention(fields, sources, qk_norm="head")
    same = fields.flag("attention_k_eq_v", default=False)
    head_dim = fields.integer("global_head_dim", default=GLOBAL_HEAD_DIM)
    n_kv = fields.integer("num_global_key_value_heads", default=plain.n_kv_heads)
    own = {"head_dim": head_dim, "num_key_value_heads": n_kv if same else plain.n_kv_heads}
    if fields.is_set("per_layer_config"):
        own = {"head_dim": plain.head_dim, "num_key_value_heads": plain.n_kv_heads}
        own |= hf_overrides(fields, kinds)
    plain = replace(plain, score_scale=1.0, value_norm=True)
    windowed = replace(plain, rope=1, window=fields.integer("sliding_window", default=WINDOW))
    whole = replace(
        plain,
        head_dim=own["head_dim"],
        n_kv_heads=own["num_key_value_heads"],
        values_are_keys=same,
    )
    return check_heads(whole, fields.source), windowed


def hf_overrides(fields: Fields, kinds: Sequence[str]) -> dict[str, int]:
    """Return what per_layer_config says of heads in all layers that see all, and only in those."""
    key = "per_layer_config"
    given = fields.raw(key)
    if given == {}:
        return {}
    names = ("head_dim", "num_key_value_heads")
    wanted = {str(number) for number, kind in enumerate(kinds) if kind == KINDS[0]}
    values = list(given.values()) if isinstance(given, dict) else []
    is_same = bool(values) and set(map(str, given)) == wanted and values == values[:1] * len(values)
    if not is_same or not isinstance(values[0], dict) or set(values[0]) - set(names):
        raise fields.fail(key, f"the same of {' and '.join(names)} for each full_attention layer")
    found = Fields(values[0], f"{fields.source}: {key}")
    return {name: found.integer(name) for name in values[0]}


def layers_of(
    attentions: Sequence[Attention], ffns: Sequence[Gated | Experts], scales: Sequence[float]
) -> tuple[Layer, ...]:
    """Return layers that end with a multiplication."""
    return tuple(
        Layer(attention, ffn, result_norms=True, output_scale=scale)
        for attention, ffn, scale in zip(attentions, ffns, scales, strict=True)
    )


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give norms their usual names, whose weights are as they are; scales have been read."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        folder = f"model.layers.{number}"
        tensors.drop(f"{folder}.layer_scalar")
        for name, role in gemma3.OF_LAYER.items():
            tensors.rename(f"{folder}.{name}.weight", usual(role, number))
    for number, experts in layers_of_experts(config):
        stack_hf_experts(tensors, number, experts, "experts")
        folder = f"model.layers.{number}"
        for name, role in OF_MIXTURE.items():
            tensors.rename(f"{folder}.{name}", usual(role, number))
        for role, shared in SHARED.items():
            tensors.rename(usual(role, number), usual(shared, number))
        tensors.multiply_rows(usual(Role.ROUTER_NORM, number), config.hidden_size**-0.5)
    drop_unused(tensors, config, HF)
    return tensors.out


def drop_unused(tensors: Rearranged, config: ModelConfig, column: int) -> None:
    """Leave out keys and values of layers that read those of others."""
    for number, layer in enumerate(config.layers):
        if layer.attention is not None and layer.attention.kv_layer is not None:
            tensors.drop(*(usual(role, number, column) for role in UNUSED))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    arch, n_layers = arch_of(fields), gguf_n_layers(fields, sources)
    windows = gguf_windows(fields, n_layers, PERIOD)
    whole, windowed = gguf_attentions(fields, sources, windows)
    scales = [
        one_number(sources, f"blk.{number}.layer_output_scale.weight", fields.source)
        for number in range(n_layers)
    ]
    key = f"{arch}.attention.shared_kv_layers"
    n_own = n_layers - fields.integer(key, default=0, least=0)
    if n_own <= 0:
        raise fields.fail(key, f"a number below the number of layers, {n_layers},")
    attentions = with_shared_keys(
        [
            whole if window is None else replace(windowed, rope=1, window=window)
            for window in windows
        ],
        n_own,
        fields.source,
    )
    sizes = gguf_sizes(fields, n_layers)
    ffns: list[Gated | Experts] = [Gated(size, activation=CURVE) for size in sizes]
    if has(sources, Role.ROUTER, GGUF):
        experts = gguf_experts(fields, sources, "softmax", renormalize=True)
        experts = replace(experts, activation=CURVE, own_norms=True)
        ffns = [replace(experts, shared_size=size) for size in sizes]
    layers = layers_of(attentions, ffns, scales)
    rope, context = gguf_rope(fields, sources, whole.head_dim, THETAS[KINDS[0]], truncate=True)
    turned = fields.integer(f"{arch}.rope.dimension_count_swa", default=windowed.head_dim)
    theta = fields.number(f"{arch}.rope.freq_base_swa", default=THETAS[KINDS[1]])
    plain = fields.replacing({f"{arch}.rope.dimension_count": turned})
    others = {name: tensor for name, tensor in sources.items() if name != ROPE_FACTORS}
    config = gguf_model(plain, others, "gemma4_text", layers, THETAS[KINDS[1]])
    key = f"{arch}.final_logit_softcapping"
    per_layer = f"{arch}.embedding_length_per_layer_input"
    return replace(
        config,
        per_layer_size=fields.integer(per_layer, default=0, least=0),
        context_length=context,
        ropes=(rope, Rope(round_to_f32(theta), turned)),
        embedding_scale=round_to_f32(math.sqrt(config.hidden_size)),
        logit_softcap=round_to_f32(fields.number(key, default=0.0, zero=True)),
    )


def gguf_sizes(fields: Fields, n_layers: int) -> list[int]:
    """Return the size of each layer's FFN."""
    key = f"{arch_of(fields)}.feed_forward_length"
    sizes = fields.raw(key)
    if not isinstance(sizes, list):
        return [fields.integer(key)] * n_layers
    if len(sizes) != n_layers:
        raise fields.fail(key, f"{n_layers} numbers, or one")
    items = Fields({str(n): size for n, size in enumerate(sizes)}, f"{fields.source}: {key}")
    return [items.integer(str(n)) for n in range(n_layers)]


def gguf_attentions(
    fields: Fields, sources: Sources, windows: Sequence[int | None]
) -> tuple[Attention, Attention]:
    """Return attention that sees all, and that with a window, which has other heads."""
    arch = arch_of(fields)
    counts, heads = f"{arch}.attention.head_count_kv", f"{arch}.attention."
    given = fields.raw(counts)
    each = given if isinstance(given, list) else [given] * len(windows)
    if len(each) != len(windows):
        raise fields.fail(counts, f"{len(windows)} numbers, or one")
    found = []
    for sees_all in (True, False):
        own = [n for n, window in zip(each, windows, strict=True) if (window is None) == sees_all]
        values = {counts: own if own else each}
        if not sees_all:
            values |= {
                f"{heads}{name}_length": fields.raw(f"{heads}{name}_length_swa")
                for name in ("key", "value")
            }
        attention = gguf_attention(fields.replacing(values), sources, qk_norm="head")
        found.append(replace(attention, score_scale=1.0, value_norm=True))
    first = next((n for n, window in enumerate(windows) if window is None), 0)
    same = usual(Role.ATTN_V, first, GGUF) not in sources
    return replace(found[0], values_are_keys=same), found[1]


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Leave out the scales, which have been read."""
    tensors = Rearranged(flatten_gguf_experts(sources, config))
    for number in range(config.n_layers):
        tensors.drop(f"blk.{number}.layer_output_scale.weight")
    for number, _ in layers_of_experts(config):
        for role, shared in SHARED.items():
            tensors.rename(usual(role, number, GGUF), usual(shared, number, GGUF))
        tensors.multiply_rows(usual(Role.ROUTER_NORM, number, GGUF), config.hidden_size**-0.5)
    drop_unused(tensors, config, GGUF)
    return tensors.out


FAMILY = Family(
    "gemma4_text",
    from_hf,
    "gemma4",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    harmless=HARMLESS,
)
