"""Random programs of layers, of every kind and size that the library computes."""

from dataclasses import replace

import numpy as np

from lanewise.loading.base.program import (
    CURVES,
    FFN_CURVES,
    WIRINGS,
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Plain,
    Rope,
)
from lanewise.loading.base.recurrences import ChannelDelta, GatedDelta, ShortConv, Ssd, State
from random_checkpoints import VOCAB

N_TOKENS = 40


def random_attention(
    rng: np.random.Generator, heads: tuple[int, int, int], ropes: int
) -> Attention:
    n_heads, n_kv_heads, head_dim = heads
    gate = {"output_gate": True} if rng.random() < 0.3 else {"head_gate": bool(rng.random() < 0.2)}
    scale = {"score_scale": float(np.float32(rng.uniform(0.05, 0.5)))} if rng.random() < 0.3 else {}
    return Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        rope=None if rng.random() < 0.2 else int(rng.integers(ropes)),
        window=int(rng.integers(1, 40)) if rng.random() < 0.4 else None,
        qkv_bias=bool(rng.random() < 0.4),
        output_bias=bool(rng.random() < 0.4),
        qk_norm=str(rng.choice(["none", "head", "whole"])),
        sinks=bool(rng.random() < 0.4),
        position_scale=(0.125, int(rng.integers(1, 20))) if rng.random() < 0.3 else None,
        **gate,
        **scale,
    )


def random_state(rng: np.random.Generator) -> State:
    taps, kind = int(rng.integers(2, 9)), int(rng.integers(4))
    if kind == 0:
        return ShortConv(taps)
    key_heads = int(rng.integers(1, 4))
    heads = key_heads * int(rng.integers(1, 4))
    sizes = [16 * int(rng.integers(1, 4)) for _ in range(2)]
    if kind == 1:
        turns = bool(rng.random() < 0.5)
        return GatedDelta(taps, heads, sizes[0], key_heads, sizes[1], keys_in_turn=turns)
    if kind == 3:
        ranks = [int(rng.integers(1, 150)) if rng.random() < 0.6 else 0 for _ in range(2)]
        floor = float(rng.integers(1, 6)) if rng.random() < 0.5 else 0.0
        return ChannelDelta(taps, heads, sizes[0], key_heads, sizes[1], *ranks, floor)
    norm_size = [None, heads * sizes[0], sizes[0]][int(rng.integers(3))]
    bias = bool(rng.random() < 0.5)
    return Ssd(taps, heads, sizes[0], key_heads, sizes[1], norm_size, conv_bias=bias)


def random_layer(rng: np.random.Generator, heads: tuple[int, int, int], ropes: int) -> Layer:
    """One with attention, or another kind."""
    if rng.random() < 0.4:
        state = random_state(rng) if rng.random() < 0.8 else None
        size = int(rng.integers(1, 200))
        ffn = [random_experts(rng), Gated(size), Plain(size, activation="relu_squared"), None]
        return Layer(None, ffn[int(rng.integers(3 if state is None else 4))], state=state)
    if rng.random() < 0.1:
        return Layer(random_attention(rng, heads, ropes), None)
    return layer_of_attention(rng, heads, ropes)


def layer_of_attention(rng: np.random.Generator, heads: tuple[int, int, int], ropes: int) -> Layer:
    size = int(rng.integers(1, 200))
    plain = Gated(size, bias=bool(rng.random() < 0.4))
    ffn = random_experts(rng) if rng.random() < 0.7 else plain
    attention = random_attention(rng, heads, ropes)
    biases = ffn.bias or attention.output_bias
    beside = random_state(rng) if rng.random() < 0.25 else None
    if rng.random() < 0.2:
        attention = replace(attention, inner_norm=True)
    if isinstance(ffn, Gated) and rng.random() < 0.3:
        ffn = replace(ffn, inner_norm=True)
    can_have_norms = isinstance(ffn, Gated) and not biases and beside is None
    result_norms = can_have_norms and bool(rng.random() < 0.5)
    return Layer(attention, ffn, result_norms=result_norms, state=beside)


def has_inner_norm(layer: Layer) -> bool:
    of_ffn = isinstance(layer.ffn, Gated) and layer.ffn.inner_norm
    return of_ffn or (layer.attention is not None and layer.attention.inner_norm)


def random_experts(rng: np.random.Generator) -> Experts:
    groups = int(rng.choice([1, 1, 2, 3]))
    n = groups * int(rng.integers(2, 6))
    groups_used = int(rng.integers(1, groups + 1))
    bias, down_bias = ((False, False), (True, False), (False, True))[int(rng.integers(3))]
    shared_size = 32 * int(rng.integers(0, 4))
    return Experts(
        n=n,
        n_used=int(rng.integers(1, n // groups * groups_used + 1)),
        size=32 * int(rng.integers(1, 6)),
        router=str(rng.choice(["softmax", "top_softmax", "sigmoid"])),
        router_bias=bool(rng.random() < 0.4),
        choice_bias=bool(rng.random() < 0.4),
        groups=groups,
        groups_used=groups_used,
        groups_by_best=groups > 1 and bool(rng.random() < 0.5),
        renormalize=bool(rng.random() < 0.5),
        denominator_eps=float(rng.choice([0.0, 0.25])),
        denominator_least=float(rng.choice([0.0, 0.5])),
        scale=float(rng.choice([1.0, 2.5])),
        bias=bias,
        down_bias=down_bias,
        shared_size=shared_size,
        shared_gate=shared_size > 0 and bool(rng.random() < 0.5),
        **random_activation(rng),
    )


def random_activation(rng: np.random.Generator) -> dict[str, object]:
    """Mostly those that models have."""
    if rng.random() < 0.4:
        curve = "relu_squared" if rng.random() < 0.5 else str(rng.choice(CURVES))
        return {"gated": False, "activation": curve}
    if rng.random() < 0.3:
        return {"activation": "clamped", "limit": 0.75, "alpha": 1.75}
    return {"activation": "silu" if rng.random() < 0.7 else str(rng.choice(CURVES))}


def random_program(rng: np.random.Generator) -> ModelConfig:
    n_kv_heads, head_dim = int(rng.integers(1, 4)), 2 * int(rng.integers(2, 14))
    heads = (n_kv_heads * int(rng.integers(1, 4)), n_kv_heads, head_dim)
    ropes = []
    for _ in range(int(rng.integers(1, 4))):
        rotated = 2 * int(rng.integers(1, head_dim // 2 + 1))
        factors = tuple(float(f) for f in rng.uniform(1, 4, rotated // 2).astype("f4"))
        scale = float(rng.choice([1.0, 1.25]))
        ropes.append(Rope(1e4, rotated, factors if rng.random() < 0.5 else None, scale))
    layers = [random_layer(rng, heads, len(ropes)) for _ in range(int(rng.integers(1, 4)))]
    if all(layer.attention is None for layer in layers):
        layers.append(layer_of_attention(rng, heads, len(ropes)))
    norms = [x.result_norms or (x.attention and x.attention.qk_norm != "none") for x in layers]
    plain_residual = any(norms) or any(has_inner_norm(layer) for layer in layers)
    return ModelConfig(
        architecture="random",
        hidden_size=32 * int(rng.integers(1, 6)),
        vocab_size=VOCAB,
        context_length=256,
        rms_norm_eps=1e-5,
        tied_embeddings=bool(rng.random() < 0.5),
        ropes=tuple(ropes),
        layers=tuple(layers),
        embedding_scale=float(rng.choice([1.0, 8.0])),
        residual_scale=1.0 if plain_residual else float(rng.choice([1.0, 0.25])),
        logit_scale=float(rng.choice([1.0, 0.125])),
    )


def with_further_kinds(rng: np.random.Generator, config: ModelConfig) -> ModelConfig:
    """The same program with norms, wirings, caps and ends that few models have."""
    norm = "layer" if rng.random() < 0.3 and not config.has_states else "rms"
    norm_bias = norm == "layer" and bool(rng.random() < 0.5)
    norm_bias = norm_bias and not any(has_inner_norm(layer) for layer in config.layers)
    plain_residual = config.residual_scale == 1.0
    changed = [further_layer(rng, layer, plain_residual) for layer in config.layers]
    if plain_residual and not norm_bias:
        changed = [with_own_norms(rng, layer) for layer in changed]
    if rng.random() < 0.5:
        changed = with_other_heads(rng, config, changed)
    if norm_bias:
        changed = [replace(one, result_norms=False, no_input_norms=False) for one in changed]
    usual = all(
        one.ffn is not None and one.ffn.activation not in ("clamped", "xielu") for one in changed
    )
    has_inputs = usual and norm == "rms" and plain_residual and rng.random() < 0.5
    made = replace(
        config,
        per_layer_size=int(rng.integers(1, 40)) if has_inputs else 0,
        norm=norm,
        norm_bias=norm_bias,
        layers=tuple(changed),
        learned_positions=plain_residual and bool(rng.random() < 0.3),
        output_bias=bool(rng.random() < 0.4),
        logit_softcap=float(np.float32(rng.uniform(1, 9))) if rng.random() < 0.3 else 0.0,
        result_eps=0.5 if rng.random() < 0.3 else 0.0,
        embedding_norm=norm == "rms" and plain_residual and bool(rng.random() < 0.3),
    )
    return replace(made, layers=tuple(with_latents(rng, made, one) for one in made.layers))


def with_other_heads(
    rng: np.random.Generator, config: ModelConfig, layers: list[Layer]
) -> list[Layer]:
    """The same layers with heads of their own, some of which read what others have stored."""
    least = max(rope.rotated for rope in config.ropes)
    kinds = []
    for _ in range(2):
        n_kv_heads = int(rng.integers(1, 4))
        head_dim = least + 2 * int(rng.integers(0, 12) if rng.random() < 0.8 else 200)
        heads = {"n_heads": n_kv_heads * int(rng.integers(1, 4)), "n_kv_heads": n_kv_heads}
        of_values = int(rng.integers(1, head_dim + 1)) if rng.random() < 0.4 else 0
        kinds.append(heads | {"head_dim": head_dim, "value_dim": of_values})
    found: dict[tuple[int | None, ...], int] = {}
    changed = []
    for number, layer in enumerate([*layers, *layers]):
        attention = layer.attention
        if attention is not None:
            if attention.window is None and rng.random() < 0.4:
                attention = replace(attention, chunk=32)
            if attention.position_scale is not None:
                attention = replace(attention, position_offset=1)
            kind = kinds[int(rng.integers(2))]
            attention = replace(attention, **kind)
            key = (attention.n_kv_heads, attention.head_dim, attention.value_dim, attention.window)
            if key in found and rng.random() < 0.7:
                attention = replace(attention, kv_layer=found[key])
            else:
                of_keys = attention.value_dim == 0 and bool(rng.random() < 0.4)
                values = {"values_are_keys": of_keys, "value_scale": float(rng.choice([0, 0.75]))}
                norm = config.residual_scale == 1.0 and bool(rng.random() < 0.4)
                attention = replace(attention, value_norm=norm, **values)
                found[key] = number
        changed.append(replace(layer, attention=attention))
    return changed


def further_layer(rng: np.random.Generator, layer: Layer, plain_residual: bool) -> Layer:
    attention, ffn = layer.attention, layer.ffn
    if attention is not None and rng.random() < 0.3:
        attention = replace(attention, score_softcap=float(np.float32(rng.uniform(0.5, 4))))
    if attention is not None and rng.random() < 0.3:
        attention = replace(attention, qkv_clip=float(np.float32(rng.uniform(0.3, 2))))
    if attention is not None and plain_residual and rng.random() < 0.2:
        attention = replace(attention, qk_norm=str(rng.choice(["turned", "layer"])))
    if attention is not None and (attention.output_gate or attention.head_gate):
        attention = replace(attention, gate_softplus=bool(rng.random() < 0.4))
    if isinstance(ffn, Gated | Plain) and rng.random() < 0.5:
        ffn = random_ffn(rng, bias=not layer.result_norms)
    biases = ffn is not None and (ffn.bias or ffn.down_bias or isinstance(ffn, Experts))
    biases |= attention is not None and attention.output_bias
    result_norms = layer.result_norms
    has_both = attention is not None and layer.state is not None
    if not has_both and not biases and plain_residual and rng.random() < 0.5:
        result_norms = True
    beside = attention is not None and ffn is not None and rng.random() < 0.4
    return replace(
        layer,
        attention=attention,
        ffn=ffn,
        result_norms=result_norms,
        no_input_norms=result_norms and bool(rng.random() < 0.5),
        wiring=str(rng.choice(WIRINGS)) if beside else "in_turn",
        output_scale=float(np.float32(rng.uniform(0.5, 2))) if rng.random() < 0.25 else 1.0,
    )


def with_own_norms(rng: np.random.Generator, layer: Layer) -> Layer:
    """Experts with norms of their own in some of the layers that can have them."""
    attention, ffn = layer.attention, layer.ffn
    if not isinstance(ffn, Experts) or (attention is None) == (layer.state is None):
        return layer
    if rng.random() < 0.5:
        return layer
    plain = {"bias": False, "down_bias": False, "shared_gate": False}
    ffn = replace(
        ffn, own_norms=True, gated=True, shared_size=32 * int(rng.integers(1, 4)), **plain
    )
    if attention is not None:
        attention = replace(attention, output_bias=False)
    ways = {"result_norms": True, "no_input_norms": False, "wiring": "in_turn"}
    return replace(layer, attention=attention, ffn=ffn, **ways)


def with_latents(rng: np.random.Generator, config: ModelConfig, layer: Layer) -> Layer:
    """Experts in a space of their own in some of the layers that can have them."""
    ffn = layer.ffn
    if isinstance(ffn, Gated) and ffn.activation == "silu" and not config.per_layer_size:
        limit = float(np.float32(rng.choice([0, 0.5])))
        return replace(layer, ffn=replace(ffn, activation="capped", limit=limit))
    if not isinstance(ffn, Experts) or ffn.own_norms or rng.random() < 0.5:
        return layer
    if ffn.activation == "silu" and ffn.gated and not config.per_layer_size:
        limits = {"limit": 0.25, "shared_limit": float(rng.choice([0, 0.5]))}
        return replace(layer, ffn=replace(ffn, activation="capped", **limits))
    size = 32 * int(rng.integers(1, config.hidden_size // 32 + 1))
    weighs = bool(rng.random() < 0.5)
    ffn = replace(ffn, bias=False, down_bias=False, latent_size=size, weighs_inputs=weighs)
    return replace(layer, ffn=ffn)


def random_ffn(rng: np.random.Generator, bias: bool) -> Gated | Plain:
    kind = Gated if rng.random() < 0.5 else Plain
    curve = str(rng.choice(FFN_CURVES))
    scales = {"alpha": 0.75, "limit": 1.25} if curve == "xielu" else {}
    biases = {"bias": bool(rng.random() < 0.4), "down_bias": bool(rng.random() < 0.4)}
    return kind(int(rng.integers(1, 200)), activation=curve, **scales, **(biases if bias else {}))
