"""Which tensors a program needs, of which shapes, and the check that a file has just these."""

from __future__ import annotations

from lanewise.loading.checkpoint import ModelFileError, Role, Tensor
from lanewise.loading.formats import MATRIX_TYPES, VECTOR_TYPES, TensorType
from lanewise.loading.names import ORDERS, TENSOR_NAMES, is_vector
from lanewise.loading.program import (
    Attention,
    Experts,
    Gated,
    GatedDelta,
    ModelConfig,
    Plain,
    Pooling,
    ShortConv,
    Ssd,
    State,
)
from lanewise.loading.sources import Sources, SourceTensor
from lanewise.loading.turned_rows import whole_heads, with_halves

REMOVED_TYPES = {31, 32, 33, 36, 37, 38}  # repacked forms that GGUF once had

Shape = tuple[int, int]  # rows and columns; a vector is one row


def bind_tensors(
    config: ModelConfig, sources: Sources, column: int, interleaved_rope: bool, source: str
) -> list[Tensor]:
    """Give each tensor of the file its role, in the order of the forward step.

    A missing, unknown, misshapen or unreadable tensor is an error that names it.
    """
    if interleaved_rope:
        sources = with_halves(config, sources, column)
    wanted = [
        (role, layer, shape)
        for role, layer, shape in wanted_tensors(config)
        if role not in ORDERS or TENSOR_NAMES[role][column].format(layer) in sources
    ]
    names = [TENSOR_NAMES[role][column].format(layer) for role, layer, _ in wanted]
    missing = [name for name in names if name not in sources]
    if missing:
        raise ModelFileError(f"{source}: {_listed('missing tensor', missing)}")
    extra = sorted(set(sources) - set(names))
    if extra:
        raise ModelFileError(
            f"{source}: {_listed('unknown tensor', extra)}; not part of a {config.architecture}"
            " model as served here"
        )
    tensors = []
    for (role, layer, (rows, cols)), name in zip(wanted, names, strict=True):
        item = sources[name]
        kind = _checked_type(item, name, is_vector(role))
        if item.shape != ((cols,) if is_vector(role) else (rows, cols)):
            needed = [cols] if is_vector(role) else [rows, cols]
            raise ModelFileError(
                f"{item.where}: tensor {name!r} has shape {list(item.shape)}"
                f" (outputs first); the config needs {needed}"
            )
        heads = whole_heads(config, role, layer) if interleaved_rope else 0
        place = (item.data, heads, item.release, item.packing, item.table)
        tensors.append(Tensor(name, role, layer, kind, rows, cols, *place))
    return tensors


def wanted_tensors(config: ModelConfig) -> list[tuple[Role, int, Shape]]:
    """Return what a model has, in the order of the forward step; the orders it may have."""
    head = (config.vocab_size, config.hidden_size)
    wanted = [(Role.TOKEN_EMBEDDING, 0, head)]
    if config.n_token_types:
        shape = (config.n_token_types, config.hidden_size)
        wanted.append((Role.TOKEN_TYPE_EMBEDDING, 0, shape))
    if config.learned_positions:
        shape = (config.context_length, config.hidden_size)
        wanted.append((Role.POSITION_EMBEDDING, 0, shape))
    wanted += per_layer_ends(config)
    for number in range(config.n_layers):
        wanted += [(role, number, shape) for role, shape in layer_shapes(config, number).items()]
    wanted.append((Role.OUTPUT_NORM, 0, (1, config.hidden_size)))
    if config.output_bias:
        wanted.append((Role.OUTPUT_BIAS, 0, (1, config.vocab_size)))
    if config.norm_bias:
        wanted.append((Role.OUTPUT_NORM_BIAS, 0, (1, config.hidden_size)))
    if config.pooling is not None:
        return wanted + dense_tensors(config, config.pooling)
    if not config.tied_embeddings:
        wanted.append((Role.OUTPUT, 0, head))
    return wanted


def per_layer_ends(config: ModelConfig) -> list[tuple[Role, int, Shape]]:
    """Return what makes the values that each layer has of a token for itself."""
    size = config.per_layer_size
    if not size:
        return []
    return [
        (Role.PER_LAYER_EMBEDDING, 0, (config.vocab_size, config.n_layers * size)),
        (Role.PER_LAYER_PROJECTION, 0, (config.n_layers * size, config.hidden_size)),
        (Role.PER_LAYER_NORM, 0, (1, size)),
    ]


def dense_tensors(config: ModelConfig, pooling: Pooling) -> list[tuple[Role, int, Shape]]:
    """Return what the dense heads have, one after the other."""
    wanted: list[tuple[Role, int, Shape]] = []
    inputs = config.hidden_size
    for number, dense in enumerate(pooling.dense):
        vectors = {
            Role.DENSE_BIAS: dense.bias,
            Role.DENSE_NORM: dense.norm,
            Role.DENSE_NORM_BIAS: dense.norm and config.norm_bias,
        }
        wanted.append((Role.DENSE, number, (dense.outputs, inputs)))
        wanted += [(role, number, (1, dense.outputs)) for role, has in vectors.items() if has]
        inputs = dense.outputs
    return wanted


def layer_shapes(config: ModelConfig, number: int) -> dict[Role, Shape]:
    """Return the roles and shapes of one layer's tensors."""
    layer, hidden = config.layers[number], config.hidden_size
    shapes: dict[Role, Shape] = {}
    orders: dict[Role, Shape] = {}
    own = config.per_layer_size
    if layer.mtp:
        shapes |= {Role.MTP_EMBEDDING_NORM: (1, hidden), Role.MTP_HIDDEN_NORM: (1, hidden)}
        shapes |= {Role.MTP_PROJECTION: (hidden, 2 * hidden), Role.MTP_NORM: (1, hidden)}
    if own:
        orders |= {Role.PER_LAYER_GATE: (own, hidden), Role.PER_LAYER_OUT: (hidden, own)}
        orders[Role.PER_LAYER_RESULT_NORM] = (1, hidden)
    if layer.attention is not None:
        shapes |= attention_shapes(layer.attention, hidden)
        results = (1, layer.attention.n_heads * layer.attention.output_dim)
        orders |= {Role.ATTN_INPUT_ORDER: (1, hidden), Role.ATTN_OUTPUT_ORDER: results}
        # What has a state, or is latent, reads the same inputs in their own order.
        if layer.state is not None or layer.attention.latent_rank:
            del orders[Role.ATTN_INPUT_ORDER]
    if layer.state is not None:
        shapes |= state_shapes(layer.state, hidden)
    mixes = layer.attention is not None or layer.state is not None
    if mixes and config.norm_bias:
        shapes[Role.ATTN_NORM_BIAS] = (1, hidden)
    if mixes and layer.result_norms:
        shapes[Role.ATTN_RESULT_NORM] = (1, hidden)
    if layer.no_input_norms:
        shapes.pop(Role.ATTN_NORM, None)
        shapes.pop(Role.ATTN_NORM_BIAS, None)
    if layer.ffn is None:
        return shapes | orders
    if not layer.no_input_norms and layer.wiring != "parallel_one_norm":
        shapes[Role.FFN_NORM] = (1, hidden)
        if config.norm_bias:
            shapes[Role.FFN_NORM_BIAS] = (1, hidden)
    if layer.result_norms:
        shapes[Role.FFN_RESULT_NORM] = (1, hidden)
    if isinstance(layer.ffn, Experts):
        shapes |= expert_shapes(layer.ffn, hidden)
    else:
        shapes |= gated_shapes(layer.ffn, hidden)
        orders[Role.FFN_INPUT_ORDER] = (1, hidden)
    return shapes | orders


def attention_shapes(attention: Attention, hidden: int) -> dict[Role, Shape]:
    """Return the tensors of attention and the norm before it."""
    if attention.latent_rank:
        return latent_shapes(attention, hidden)
    head = attention.head_dim
    queries, keys = attention.n_heads * head, attention.n_kv_heads * head
    shapes = {
        Role.ATTN_NORM: (1, hidden),
        Role.ATTN_Q: (queries, hidden),
        Role.ATTN_K: (keys, hidden),
        Role.ATTN_V: (keys, hidden),
    }
    if attention.qkv_bias:
        shapes |= {
            Role.ATTN_Q_BIAS: (1, queries),
            Role.ATTN_K_BIAS: (1, keys),
            Role.ATTN_V_BIAS: (1, keys),
        }
    if attention.qk_norm in ("head", "turned"):
        shapes |= {Role.ATTN_Q_NORM: (1, head), Role.ATTN_K_NORM: (1, head)}
    if attention.qk_norm in ("whole", "layer"):
        shapes |= {Role.ATTN_Q_NORM: (1, queries), Role.ATTN_K_NORM: (1, keys)}
    if attention.sinks:
        shapes[Role.ATTN_SINKS] = (1, attention.n_heads)
    if attention.head_gate:
        shapes[Role.ATTN_GATE] = (attention.n_heads, hidden)
    if attention.output_gate:
        shapes[Role.ATTN_GATE] = (queries, hidden)
    shapes[Role.ATTN_OUTPUT] = (hidden, queries)
    if attention.output_bias:
        shapes[Role.ATTN_OUTPUT_BIAS] = (1, hidden)
    absent: tuple[Role, ...] = ()
    if attention.kv_layer is not None:
        absent = (Role.ATTN_K, Role.ATTN_V, Role.ATTN_K_BIAS, Role.ATTN_V_BIAS, Role.ATTN_K_NORM)
    elif attention.values_are_keys:
        absent = (Role.ATTN_V, Role.ATTN_V_BIAS)
    return {role: shape for role, shape in shapes.items() if role not in absent}


def latent_shapes(attention: Attention, hidden: int) -> dict[Role, Shape]:
    """Return the tensors of latent attention and the norm before it."""
    rank, query = attention.latent_rank, attention.query_rank
    n_heads, head = attention.n_heads, attention.head_dim
    shapes: dict[Role, Shape] = {Role.ATTN_NORM: (1, hidden)}
    if query:
        shapes |= {Role.LATENT_QUERY: (query, hidden), Role.LATENT_QUERY_NORM: (1, query)}
    shapes |= {
        Role.LATENT_DOWN: (rank + attention.rope_dim, hidden),
        Role.LATENT_NORM: (1, rank),
        Role.ATTN_Q: (n_heads * head, query or hidden),
        Role.LATENT_KEYS: (n_heads * rank, head - attention.rope_dim),
        Role.LATENT_VALUES: (n_heads * attention.value_dim, rank),
    }
    if attention.sinks:
        shapes[Role.ATTN_SINKS] = (1, n_heads)
    shapes[Role.ATTN_OUTPUT] = (hidden, n_heads * attention.value_dim)
    if attention.output_bias:
        shapes[Role.ATTN_OUTPUT_BIAS] = (1, hidden)
    return shapes


def state_shapes(state: State, hidden: int) -> dict[Role, Shape]:
    """Return the tensors of what has a state, and the norm before it."""
    shapes: dict[Role, Shape] = {Role.ATTN_NORM: (1, hidden)}
    if isinstance(state, ShortConv):
        return shapes | {
            Role.STATE_IN: (3 * hidden, hidden),
            Role.STATE_CONV: (1, hidden * state.taps),
            Role.STATE_OUT: (hidden, hidden),
        }
    inner = state.inner
    shapes |= {
        Role.STATE_IN: (state.channels, hidden),
        Role.STATE_GATE: (inner, hidden),
        Role.STATE_DECAY: (state.n_heads, hidden),
        Role.STATE_CONV: (1, state.channels * state.taps),
        Role.STATE_DECAY_BIAS: (1, state.n_heads),
        Role.STATE_RATE: (1, state.n_heads),
    }
    if isinstance(state, GatedDelta):
        shapes |= {
            Role.STATE_BETA: (state.n_heads, hidden),
            Role.STATE_NORM: (1, state.value_dim),
        }
    if isinstance(state, Ssd):
        shapes[Role.STATE_SKIP] = (1, state.n_heads)
        if state.conv_bias:
            shapes[Role.STATE_CONV_BIAS] = (1, state.channels)
        if state.norm_size is not None:
            shapes[Role.STATE_NORM] = (1, inner)
    return shapes | {Role.STATE_OUT: (hidden, inner)}


def gated_shapes(ffn: Gated | Plain, hidden: int) -> dict[Role, Shape]:
    """Return the tensors of a layer without experts."""
    shapes = {
        Role.FFN_GATE: (ffn.size, hidden),
        Role.FFN_UP: (ffn.size, hidden),
        Role.FFN_DOWN: (hidden, ffn.size),
    }
    if ffn.bias:
        shapes |= {
            Role.FFN_GATE_BIAS: (1, ffn.size),
            Role.FFN_UP_BIAS: (1, ffn.size),
            Role.FFN_DOWN_BIAS: (1, hidden),
        }
    if ffn.down_bias:
        shapes[Role.FFN_DOWN_BIAS] = (1, hidden)
    return without_gates(shapes) if isinstance(ffn, Plain) else shapes


def expert_shapes(ffn: Experts, hidden: int) -> dict[Role, Shape]:
    """Return the tensors of a layer of experts, whose matrices are one below the other."""
    shapes = {Role.ROUTER: (ffn.n, hidden)}
    if ffn.router_bias:
        shapes[Role.ROUTER_BIAS] = (1, ffn.n)
    if ffn.choice_bias:
        shapes[Role.ROUTER_CHOICE_BIAS] = (1, ffn.n)
    shapes |= {
        Role.EXPERTS_GATE: (ffn.n * ffn.size, hidden),
        Role.EXPERTS_UP: (ffn.n * ffn.size, hidden),
        Role.EXPERTS_DOWN: (ffn.n * hidden, ffn.size),
    }
    if ffn.bias:
        shapes |= {
            Role.EXPERTS_GATE_BIAS: (1, ffn.n * ffn.size),
            Role.EXPERTS_UP_BIAS: (1, ffn.n * ffn.size),
            Role.EXPERTS_DOWN_BIAS: (1, ffn.n * hidden),
        }
    if ffn.down_bias:
        shapes[Role.FFN_DOWN_BIAS] = (1, hidden)
    if ffn.shared_size:
        shapes |= {
            Role.SHARED_GATE: (ffn.shared_size, hidden),
            Role.SHARED_UP: (ffn.shared_size, hidden),
            Role.SHARED_DOWN: (hidden, ffn.shared_size),
        }
        if ffn.shared_gate:
            shapes[Role.SHARED_ROUTER] = (1, hidden)
    if ffn.own_norms:
        norms = (Role.ROUTER_NORM, Role.EXPERTS_NORM)
        results = (Role.SHARED_RESULT_NORM, Role.EXPERTS_RESULT_NORM)
        shapes |= dict.fromkeys((*norms, *results), (1, hidden))
        shapes[Role.ROUTER_SCALES] = (1, ffn.n)
    return shapes if ffn.gated else without_gates(shapes)


def without_gates(shapes: dict[Role, Shape]) -> dict[Role, Shape]:
    """Return the tensors of layers that are not gated."""
    return {role: shape for role, shape in shapes.items() if "GATE" not in role.name}


def _checked_type(item: SourceTensor, name: str, vector: bool) -> TensorType:
    accepted = VECTOR_TYPES if vector else MATRIX_TYPES
    if isinstance(item.type, TensorType) and item.type in accepted:
        return item.type
    shown = item.type.name if isinstance(item.type, TensorType) else item.type
    hint = ""
    if item.type in REMOVED_TYPES:
        hint = "; this type was removed from GGUF: requantize the model, for example to Q4_0"
    raise ModelFileError(
        f"{item.where}: tensor {name!r} has type {shown}; accepted are"
        f" {', '.join(kind.name for kind in accepted)}{hint}"
    )


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{what}{'s' if len(names) > 1 else ''} {shown}{more}"
