"""Which tensors a program has, of which shapes, as its definition needs them."""

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.drafting_heads import Taps
from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    ModelConfig,
    Plain,
)
from lanewise.loading.base.recurrences import ChannelDelta, GatedDelta, ShortConv, State


def shape_of(config: ModelConfig, role: Role, layer: int) -> tuple[int, ...] | None:
    """Shape of a tensor of the program, None if it has no such tensor."""
    hidden = config.hidden_size
    shapes: dict[Role, tuple[int, ...]] = {}
    if layer == 0:
        shapes |= shapes_of_ends(config)
    of_layer = config.layers[layer]
    if of_layer.attention is not None:
        shapes |= shapes_of_attention(of_layer.attention, hidden)
    if of_layer.state is not None:
        shapes |= shapes_of_state(of_layer.state, hidden)
    if of_layer.result_norms and (of_layer.attention or of_layer.state):
        shapes[Role.ATTN_RESULT_NORM] = (hidden,)
    if of_layer.result_norms and of_layer.ffn:
        shapes[Role.FFN_RESULT_NORM] = (hidden,)
    ffn = of_layer.ffn
    if isinstance(ffn, Experts):
        shapes |= shapes_of_experts(ffn, hidden)
    elif ffn is not None:
        shapes |= shapes_of_gated(ffn, hidden)
    if of_layer.wiring == "parallel_one_norm" or of_layer.no_input_norms:
        shapes.pop(Role.FFN_NORM, None)
    if of_layer.no_input_norms:
        shapes.pop(Role.ATTN_NORM, None)
    if of_layer.mtp:
        shapes |= {Role.MTP_EMBEDDING_NORM: (hidden,), Role.MTP_HIDDEN_NORM: (hidden,)}
        shapes |= {Role.MTP_PROJECTION: (hidden, 2 * hidden), Role.MTP_NORM: (hidden,)}
    if of_layer.head is not None:
        shapes = with_taps(shapes, of_layer.head, config)
    if own := config.per_layer_size:
        shapes |= {Role.PER_LAYER_GATE: (own, hidden), Role.PER_LAYER_OUT: (hidden, own)}
        shapes[Role.PER_LAYER_RESULT_NORM] = (hidden,)
    if n := config.n_streams:
        shapes |= shapes_of_streams(n, hidden, config.laurel_rank)
    if config.norm_bias:
        for norm_role in (Role.ATTN_NORM, Role.FFN_NORM):
            if norm_role in shapes:
                shapes[Role[f"{norm_role.name}_BIAS"]] = (hidden,)
    return shapes.get(role)


def with_taps(
    shapes: dict[Role, tuple[int, ...]], head: Taps, config: ModelConfig
) -> dict[Role, tuple[int, ...]]:
    """Of a prediction head with taps: attention reads twice as much."""
    hidden, three = config.hidden_size, 3 * config.hidden_size
    left = {
        role: shape
        for role, shape in shapes.items()
        if role not in (Role.MTP_PROJECTION, Role.ATTN_NORM)
    }
    for role in (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.ATTN_GATE):
        if role in left:
            left[role] = (left[role][0], 2 * hidden)
    left[Role.HEAD_FUSION] = (hidden, three)
    if head.fusion_norm:
        left[Role.HEAD_FUSION_NORM] = (three,)
    if head.own_embedding:
        left[Role.HEAD_EMBEDDING] = (config.vocab_size, hidden)
    if head.outputs:
        left[Role.HEAD_OUTPUT] = (head.outputs, hidden)
    if head.chooses:
        left[Role.HEAD_TOKENS] = (head.outputs,)
    return left


def shapes_of_ends(config: ModelConfig) -> dict[Role, tuple[int, ...]]:
    """Of what is there once per model."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[Role, tuple[int, ...]] = {
        Role.TOKEN_EMBEDDING: (vocab, hidden),
        Role.OUTPUT_NORM: (hidden,),
    }
    if not config.tied_embeddings:
        shapes[Role.OUTPUT] = (vocab, hidden)
    if config.per_layer_size:
        own = config.n_layers * config.per_layer_size
        if not config.per_layer_projected:
            shapes[Role.PER_LAYER_EMBEDDING] = (config.per_layer_rows or vocab, own)
        shapes[Role.PER_LAYER_PROJECTION] = (own, hidden)
        shapes[Role.PER_LAYER_NORM] = (config.per_layer_size,)
    if n := config.n_streams:
        both = ((n - 1) * hidden, hidden)
        shapes |= {Role.STREAMS_IN: both, Role.STREAMS_OUT: both}
    if config.output_bias:
        shapes[Role.OUTPUT_BIAS] = (vocab,)
    if config.norm_bias:
        shapes[Role.OUTPUT_NORM_BIAS] = (hidden,)
    if config.learned_positions:
        shapes[Role.POSITION_EMBEDDING] = (config.context_length, hidden)
    return shapes


def shapes_of_streams(n: int, hidden: int, rank: int) -> dict[Role, tuple[int, ...]]:
    """Of one layer."""
    vectors = (Role.STREAM_NORM, Role.STREAM_SCALE, Role.LAUREL_NORM)
    return dict.fromkeys(vectors, (hidden,)) | {
        Role.STREAM_ROUTER: (n * hidden,),
        Role.STREAM_PREDICTION: (n**3,),
        Role.STREAM_CORRECTION: (n * n,),
        Role.LAUREL_DOWN: (rank, hidden),
        Role.LAUREL_UP: (hidden, rank),
    }


def shapes_of_attention(c: Attention, hidden: int) -> dict[Role, tuple[int, ...]]:
    """Of one layer."""
    if c.latent_rank:
        return shapes_of_latent(c, hidden)
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    out, of_values = c.n_heads * c.output_dim, c.n_kv_heads * c.output_dim
    shapes: dict[Role, tuple[int, ...]] = {
        Role.ATTN_NORM: (hidden,),
        Role.ATTN_Q: (q, hidden),
        Role.ATTN_K: (kv, hidden),
        Role.ATTN_V: (of_values, hidden),
        Role.ATTN_OUTPUT: (hidden, out),
    }
    if c.inner_norm:
        shapes[Role.ATTN_INNER_NORM] = (out,)
    if c.index_block:
        shapes |= {
            Role.INDEX_QUERY: (c.index_heads * c.index_dim, hidden),
            Role.INDEX_KEY: (c.index_dim, hidden),
            Role.INDEX_QUERY_NORM: (c.index_dim,),
            Role.INDEX_KEY_NORM: (c.index_dim,),
        }
    if c.qkv_bias:
        shapes |= {Role.ATTN_Q_BIAS: (q,), Role.ATTN_K_BIAS: (kv,), Role.ATTN_V_BIAS: (of_values,)}
    if c.output_bias:
        shapes[Role.ATTN_OUTPUT_BIAS] = (hidden,)
    if c.disentangled:
        each = (c.n_heads * c.head_dim * (2 * c.distances + 1),)
        shapes |= {Role.ATTN_POSITION_KEYS: each, Role.ATTN_POSITION_QUERIES: each}
    elif c.distances:
        shapes[Role.ATTN_DISTANCES] = (c.n_heads * (2 * c.distances + 1),)
    if c.sinks:
        shapes[Role.ATTN_SINKS] = (c.n_heads,)
    if c.output_gate or c.head_gate:
        shapes[Role.ATTN_GATE] = (out if c.output_gate else c.n_heads, hidden)
    if c.qk_norm in ("head", "turned"):
        shapes |= {Role.ATTN_Q_NORM: (c.head_dim,), Role.ATTN_K_NORM: (c.head_dim,)}
    if c.qk_norm in ("whole", "layer"):
        shapes |= {Role.ATTN_Q_NORM: (q,), Role.ATTN_K_NORM: (kv,)}
    values = (Role.ATTN_V, Role.ATTN_V_BIAS)
    for role in values if c.values_are_keys or c.kv_layer is not None else ():
        shapes.pop(role, None)
    keys = (Role.ATTN_K, Role.ATTN_K_BIAS, Role.ATTN_K_NORM)
    for role in keys if c.kv_layer is not None else ():
        shapes.pop(role, None)
    return shapes


def shapes_of_latent(c: Attention, hidden: int) -> dict[Role, tuple[int, ...]]:
    """Of one layer of latent attention."""
    shapes: dict[Role, tuple[int, ...]] = {
        Role.ATTN_NORM: (hidden,),
        Role.LATENT_DOWN: (c.latent_rank + c.rope_dim, hidden),
        Role.LATENT_NORM: (c.latent_rank,),
        Role.ATTN_Q: (c.n_heads * c.head_dim, c.query_rank or hidden),
        Role.LATENT_KEYS: (c.n_heads * c.latent_rank, c.head_dim - c.rope_dim),
        Role.LATENT_VALUES: (c.n_heads * c.value_dim, c.latent_rank),
        Role.ATTN_OUTPUT: (hidden, c.n_heads * c.value_dim),
    }
    if c.query_rank:
        shapes[Role.LATENT_QUERY] = (c.query_rank, hidden)
        shapes[Role.LATENT_QUERY_NORM] = (c.query_rank,)
    if c.index_heads:
        shapes |= {
            Role.INDEX_QUERY: (c.index_heads * c.index_dim, c.query_rank),
            Role.INDEX_KEY: (c.index_dim, hidden),
            Role.INDEX_KEY_NORM: (c.index_dim,),
            Role.INDEX_KEY_NORM_BIAS: (c.index_dim,),
            Role.INDEX_WEIGHTS: (c.index_heads, hidden),
        }
    if c.output_bias:
        shapes[Role.ATTN_OUTPUT_BIAS] = (hidden,)
    if c.sinks:
        shapes[Role.ATTN_SINKS] = (c.n_heads,)
    if c.output_gate or c.head_gate:
        shapes[Role.ATTN_GATE] = (c.n_heads * (1 if c.head_gate else c.value_dim), hidden)
    return shapes


def shapes_of_state(c: State, hidden: int) -> dict[Role, tuple[int, ...]]:
    """Of one layer."""
    shapes: dict[Role, tuple[int, ...]] = {Role.ATTN_NORM: (hidden,)}
    if isinstance(c, ShortConv):
        shapes |= {Role.STATE_IN: (3 * hidden, hidden), Role.STATE_OUT: (hidden, hidden)}
        return shapes | {Role.STATE_CONV: (hidden * c.taps,)}
    inner, keys = c.n_heads * c.value_dim, c.n_key_heads * c.key_dim
    channels = inner + 2 * keys
    shapes |= {
        Role.STATE_IN: (channels, hidden),
        Role.STATE_GATE: (inner, hidden),
        Role.STATE_DECAY: (c.n_heads, hidden),
        Role.STATE_CONV: (channels * c.taps,),
        Role.STATE_DECAY_BIAS: (c.n_heads,),
        Role.STATE_RATE: (c.n_heads,),
        Role.STATE_OUT: (hidden, inner),
    }
    if isinstance(c, ChannelDelta):
        n_decays = c.n_heads * c.key_dim
        shapes |= {
            Role.STATE_IN: (keys, hidden),
            Role.STATE_KEYS: (keys, hidden),
            Role.STATE_VALUES: (inner, hidden),
            Role.STATE_GATE: (inner, c.gate_rank or hidden),
            Role.STATE_DECAY: (n_decays, c.decay_rank or hidden),
            Role.STATE_DECAY_BIAS: (n_decays,),
        }
        if c.gate_rank:
            shapes[Role.STATE_GATE_DOWN] = (c.gate_rank, hidden)
        if c.decay_rank:
            shapes[Role.STATE_DECAY_DOWN] = (c.decay_rank, hidden)
    if isinstance(c, GatedDelta | ChannelDelta):
        return shapes | {Role.STATE_BETA: (c.n_heads, hidden), Role.STATE_NORM: (c.value_dim,)}
    shapes[Role.STATE_SKIP] = (c.n_heads,)
    if c.conv_bias:
        shapes[Role.STATE_CONV_BIAS] = (channels,)
    if c.norm_size is not None:
        shapes[Role.STATE_NORM] = (inner,)
    return shapes


def shapes_of_gated(c: Gated | Plain, hidden: int) -> dict[Role, tuple[int, ...]]:
    """Of one layer."""
    shapes: dict[Role, tuple[int, ...]] = {
        Role.FFN_NORM: (hidden,),
        Role.FFN_GATE: (c.size, hidden),
        Role.FFN_UP: (c.size, hidden),
        Role.FFN_DOWN: (hidden, c.size),
    }
    if c.bias:
        shapes |= {Role.FFN_GATE_BIAS: (c.size,), Role.FFN_UP_BIAS: (c.size,)}
    if c.bias or c.down_bias:
        shapes[Role.FFN_DOWN_BIAS] = (hidden,)
    if isinstance(c, Gated) and c.inner_norm:
        shapes[Role.FFN_INNER_NORM] = (c.size,)
    if isinstance(c, Plain):
        shapes.pop(Role.FFN_GATE)
        shapes.pop(Role.FFN_GATE_BIAS, None)
    return shapes


def shapes_of_experts(c: Experts, hidden: int) -> dict[Role, tuple[int, ...]]:
    """Of one layer."""
    width = c.latent_size or hidden
    shapes: dict[Role, tuple[int, ...]] = {
        Role.FFN_NORM: (hidden,),
        Role.ROUTER: (c.n, hidden),
        Role.EXPERTS_GATE: (c.n * c.size, width),
        Role.EXPERTS_UP: (c.n * c.size, width),
        Role.EXPERTS_DOWN: (c.n * width, c.size),
    }
    if c.latent_size:
        shapes |= {Role.EXPERTS_IN: (width, hidden), Role.EXPERTS_OUT: (hidden, width)}
    if c.router_bias:
        shapes[Role.ROUTER_BIAS] = (c.n,)
    if c.choice_bias:
        shapes[Role.ROUTER_CHOICE_BIAS] = (c.n,)
    if c.bias:
        shapes |= {Role.EXPERTS_GATE_BIAS: (c.n * c.size,), Role.EXPERTS_UP_BIAS: (c.n * c.size,)}
        shapes[Role.EXPERTS_DOWN_BIAS] = (c.n * hidden,)
    if c.down_bias:
        shapes[Role.FFN_DOWN_BIAS] = (hidden,)
    if c.shared_size:
        shapes |= {
            Role.SHARED_GATE: (c.shared_size, hidden),
            Role.SHARED_UP: (c.shared_size, hidden),
            Role.SHARED_DOWN: (hidden, c.shared_size),
        }
        if c.shared_gate:
            shapes[Role.SHARED_ROUTER] = (1, hidden)
    if c.own_norms:
        norms = ("ROUTER_NORM", "EXPERTS_NORM", "SHARED_RESULT_NORM", "EXPERTS_RESULT_NORM")
        shapes |= {Role[name]: (hidden,) for name in norms} | {Role.ROUTER_SCALES: (c.n,)}
    if not c.gated:
        for role in (Role.EXPERTS_GATE, Role.EXPERTS_GATE_BIAS, Role.SHARED_GATE):
            shapes.pop(role, None)
    return shapes
