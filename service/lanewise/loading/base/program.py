"""A model as a program: its layers and their order, independent of the family.

All code that computes reads only these records. Numbers that enter the arithmetic are float32
values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lanewise.loading.base.drafting_heads import Blocks, Reader, Taps
from lanewise.loading.base.patches import Patches
from lanewise.loading.base.recurrences import State


def plain_score_scale(head_dim: int) -> float:
    """Return 1 / sqrt(head_dim), each operation rounded to float32."""
    return _f32(1.0 / _f32(math.sqrt(head_dim)))


def _f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class Rope:
    """One set of RoPE angles; a layer refers to one by its index."""

    theta: float
    rotated: int  # first dimensions of each head that RoPE turns, even; the rest is unchanged
    factors: tuple[float, ...] | None = None  # rotated / 2 frequency divisors; None: all 1
    scale: float = 1.0  # multiplies cosines and sines
    # LongRoPE: used instead of ``factors`` if no text is longer than short_context.
    short_factors: tuple[float, ...] | None = None
    short_context: int | None = None
    # Of each pair: its angle at position 1, instead of what theta and factors say; which of a
    # token's positions turns it. A patch has its row and its column, a token three positions.
    frequencies: tuple[float, ...] | None = None
    axes: tuple[int, ...] | None = None

    def for_context(self, longest: int) -> Rope:
        """Return the angles for texts of up to ``longest`` tokens."""
        if self.short_context is None or longest > self.short_context:
            return self
        return replace(self, factors=self.short_factors)


@dataclass(frozen=True)
class Attention:
    """Attention to earlier tokens or, in pooled models, to the whole text."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope: int | None  # index into ModelConfig.ropes; None: no positions
    window: int | None = None  # tokens that each query attends to, itself included; None: all
    # Queries attend to their chunk of so many tokens, a multiple of 32, without a window; 0: all.
    chunk: int = 0
    both_ways: bool = False  # a query also attends to later tokens, within the window
    sees_ahead: bool = False  # a query of a picture attends to all of that picture
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = "none"  # one of QK_NORMS
    alibi: bool = False  # scores fall with the distance, by head from 1/2 down to 1/256
    scaled_alibi: bool = False  # the slopes are multiplied by score_scale; only with alibi
    # Scores change by a number of the head and of the key's position minus the query's, which is
    # limited to -distances .. distances; 0: they do not.
    distances: int = 0
    # In the place of the number come two products: of the scaled query with the distance's key, of
    # the key with the distance's query. Every distance within the context and 30 more has both.
    disentangled: bool = False
    sinks: bool = False  # one logit for each head in the softmax's denominator
    score_scale: float = 0.0  # multiplies query-key products; 0 becomes 1 / sqrt(head_dim)
    # (beta, n): queries at position p are multiplied by 1 + beta * ln(1 + floor((p + offset) / n)).
    position_scale: tuple[float, int] | None = None
    position_offset: int = 0  # 0 or 1
    output_gate: bool = False  # results are multiplied by the sigmoid of a projection
    head_gate: bool = False  # the same with one number for each head; not beside output_gate
    gate_softplus: bool = False  # softplus instead of sigmoid, of either gate
    inner_norm: bool = False  # the results of all heads go through a norm before the output matrix
    score_softcap: float = 0.0  # scores become cap * tanh(score / cap); 0: unchanged
    values_are_keys: bool = False  # V equals K before K's norm and RoPE
    value_norm: bool = False  # RMSNorm over each head of V, without weights
    value_scale: float = 0.0  # multiplies V and its bias; 0 is 1
    qkv_clip: float = 0.0  # Q and K are clipped to it before RoPE, V before its norm; 0: not
    kv_layer: int | None = None  # an earlier layer whose K and V are used; None: its own
    # Latent attention (MLA), if latent_rank is above 0. A projection of the input gives (c, r). One
    # row of a token serves all heads: norm(c), then r after RoPE. Of a query (n, t), RoPE turns the
    # last rope_dim values, t. Its score is the product of (keys^T n, t) and the row; a head's
    # result is values times the weighted sum of norm(c). n_kv_heads is 1. Without ``rope`` nothing
    # is turned. There are no biases of Q, K and V, no norms of heads or slopes, nothing is shared.
    latent_rank: int = 0
    rope_dim: int = 0  # RoPE turns exactly these
    value_dim: int = 0  # size of a head's result; of plain heads' values, 0: as of their keys
    query_rank: int = 0  # queries go through a projection of this size and a norm; 0: directly
    latent_eps: float = 0.0  # of both norms, and of the norm of index keys
    # Sparse attention (DeepSeek V3.2), if index_topk is above 0: a query attends to the index_topk
    # tokens of the largest index scores, the first ones of equal scores; program.h says what these
    # are. With 0 index heads the tokens are those of the last layer before with any.
    index_topk: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_block: int = 0  # of plain heads (MiniMax M3): tokens of each block that is chosen
    index_local: int = 0  # blocks that are always seen, the query's own among them
    # Attention to shared rows (DeepSeek V4): one row of a token, a norm of the product of K's
    # matrix, is the key and the value of all heads. Queries have a query_rank, and a norm without
    # weights for each head. RoPE turns the last rope_dim values of both, in pairs side by side, and
    # those of a head's result back. The results are cut into output_groups equal parts, each goes
    # through a matrix of its own with output_rank results, and the output matrix reads all of
    # these. n_kv_heads is 1. Not beside what latent attention is not beside.
    shared_rows: bool = False
    output_groups: int = 0
    output_rank: int = 0
    # M, or 0. Each M tokens make an entry: for each dimension the mean of a projection of the
    # tokens, weighted by the softmax of another one and of numbers of the tokens' places, then a
    # norm, and RoPE at the place of the first one. Queries of the last token and of later ones
    # attend to it besides. With ``overlap`` the M tokens before have a part in it, by projections
    # of their own. With an index_topk queries attend to that many entries, the keys of whose index
    # scores are entries too.
    compress: int = 0
    overlap: bool = False

    @property
    def turning(self) -> int:
        """Dimensions of a head that RoPE turns."""
        return self.rope_dim or self.head_dim

    @property
    def output_dim(self) -> int:
        """Values of a head in attention's output."""
        return self.value_dim or self.head_dim

    def __post_init__(self) -> None:
        """Set the scale that most models have."""
        if self.score_scale == 0.0 and self.head_dim > 0:
            object.__setattr__(self, "score_scale", plain_score_scale(self.head_dim))


# Norm of queries and keys: none; RMSNorm before RoPE, over each head or the whole projection;
# RMSNorm over each head after RoPE; LayerNorm over each head before RoPE, with its own weights for
# each head.
QK_NORMS = ("none", "head", "whole", "turned", "layer")


@dataclass(frozen=True)
class Gated:
    """down(activation(gate x) * up x)."""

    size: int
    bias: bool = False  # of gate, up and down
    activation: str = "silu"  # one of FFN_CURVES, or "clamped" or "capped"
    down_bias: bool = False  # of down only; gate and up have none
    limit: float = 0.0  # of "xielu", "clamped" and "capped"
    alpha: float = 0.0  # of "xielu" and "clamped"
    inner_norm: bool = False  # what down reads goes through a norm first
    cutoff: float = 0.0  # not 0: gate x less its mean and so many deviations, if that is above 0


@dataclass(frozen=True)
class Plain:
    """down(activation(up x))."""

    size: int
    bias: bool = False  # of up and down
    activation: str = "gelu"  # one of FFN_CURVES
    down_bias: bool = False  # of down only; up has none
    limit: float = 0.0  # of "xielu"
    alpha: float = 0.0  # of "xielu"


@dataclass(frozen=True)
class Experts:
    """A router that chooses some of many FFNs for each token, and perhaps a shared FFN.

    Each expert, the shared one too, is down(activation(gate x, up x)), or if not ``gated``
    down(activation(up x)).
    """

    n: int
    n_used: int
    size: int
    router: str  # one of ROUTERS
    router_bias: bool = False  # added to the router's logits
    choice_bias: bool = False  # added to the scores only to choose
    groups: int = 1  # groups of experts; only the best ones, by their two best scores, are eligible
    groups_used: int = 1
    groups_by_best: bool = False  # a group counts by its best score only
    renormalize: bool = False  # chosen weights are divided by their sum ...
    denominator_eps: float = 0.0  # ... plus this
    denominator_least: float = 0.0  # ... which is at least this
    scale: float = 1.0  # of the weights, after all that
    activation: str = "silu"  # one of CURVES, or "clamped" or "capped" if gated
    limit: float = 0.0  # of "clamped", "capped" and "limited"
    alpha: float = 0.0  # of "clamped"
    shared_limit: float = 0.0  # of "capped" and "limited": that of the shared expert
    bias: bool = False  # of all experts' matrices
    down_bias: bool = False  # one for all experts, added to their weighted sum
    shared_size: int = 0  # size of the shared expert; 0: none
    shared_gate: bool = False  # the shared expert's result is multiplied by sigmoid(w . x)
    gated: bool = True
    weighs_inputs: bool = False  # experts' gate and up are multiplied by weights, not results
    # Router, experts and shared expert each read their own norm of x. The shared result, and the
    # sum of the other experts, are normalized before they are added. Experts' weights are
    # multiplied by a number of each expert, last.
    own_norms: bool = False
    # Experts but the shared one read a projection of x of this size, and the weighted sum of their
    # results goes through a second one; 0: not. Without biases and own_norms.
    latent_size: int = 0
    looks_up: bool = False  # a table has each token's experts; scores are only their weights


FFN_KINDS: Mapping[str, type[Gated] | type[Plain] | type[Experts]] = {
    "gated": Gated,
    "plain": Plain,
    "experts": Experts,
}

# softmax of all logits, then the largest; the largest logits, then softmax of these; sigmoid; the
# root of ln(1 + exp).
ROUTERS = ("softmax", "top_softmax", "sigmoid", "sqrt_softplus")

# x times: sigmoid(x); the normal distribution's CDF of x; its tanh approximation; 1 if x > 0.
# relu_squared is x^2 if x > 0. FFNs without experts may also have xIELU: alpha x^2 + x / 2 if x >
# 0, else limit (exp(min(x, -1e-6)) - 1 - x) + x / 2.
CURVES = ("silu", "gelu", "gelu_tanh", "relu", "relu_squared")
FFN_CURVES = (*CURVES, "xielu")
# curve(g) * u; or (u' + 1) * g' * sigmoid(alpha * g'), g' = min(g, limit), u' = clamp(u, +-limit);
# or min(silu(g), limit) * u', where a limit of 0 is none, also of gated FFNs; or silu(g') * u'.
ACTIVATIONS = (*CURVES, "clamped", "capped", "limited")


@dataclass(frozen=True)
class Layer:
    """x += attention(norm(x)); x += ffn(norm(x)); both sums times ModelConfig.residual_scale.

    If a norm replaces x, x = norm(x) before the addition. Layers that normalize after each addition
    are written so: all of their norms replace, the first one is the embedding's norm, and each
    later norm and the output norm is the one after the previous addition.

    With ``result_norms``, norm(attention(...)) and norm(ffn(...)) are added, by norms of their own;
    not with experts, not with biases of attention's output, of down or of norms, and not with a
    residual_scale. With ``no_input_norms`` as well, attention and ffn read x itself.

    A state is in place of attention or beside it, where both read the same norm(x), and attention's
    result is added first. A layer has at least one of the three parts.

    If ``wiring`` is not "in_turn", attention and ffn both read the same x and attention is added
    first; with "parallel_one_norm" both read the same norm(x).

    A last layer with ``mtp`` is a head that predicts the token after next. Its x at token t is
    projection(norm(embedding of t), norm(h)). h is the model's row before t after the output norm,
    or, where the head made that row itself, after the head's own norm. The head attends to its own
    rows, from the second token on. The model's output matrix makes its logits.
    """

    attention: Attention | None
    ffn: Gated | Plain | Experts | None
    attn_norm_replaces: bool = False
    ffn_norm_replaces: bool = False
    result_norms: bool = False
    state: State | None = None
    no_input_norms: bool = False
    wiring: str = "in_turn"  # one of WIRINGS
    output_scale: float = 1.0  # multiplies x at the end of the layer
    mtp: bool = False
    follows: bool = False  # with mtp: a further layer of the same head (ModelConfig.reader)
    head: Taps | Blocks | None = None  # of the first layer of a head that others made for the model
    clamps: bool = False  # of a tower: matrices clamp what they read and what they make
    row_codes: bool = False  # matrices read int8 codes with one scale for the token (BitNet)


WIRINGS = ("in_turn", "parallel", "parallel_one_norm")
# RMSNorm; or LayerNorm, with a bias if ModelConfig.norm_bias is set.
NORMS = ("rms", "layer")
# The result of a text: each row; their mean; the first; the last; the mean of dense heads' rows.
POOLINGS = ("none", "mean", "cls", "last", "late")
# Activations of dense heads.
DENSE_CURVES = (*CURVES, "tanh", "identity")
MAX_DENSE = 8
INPUT_NORMS = ("none", "rms", "layer")


@dataclass(frozen=True)
class Dense:
    """A dense head for pooled rows: activation(W x + bias), then perhaps a norm."""

    outputs: int
    bias: bool = False
    activation: str = "identity"  # one of DENSE_CURVES
    norm: bool = False
    input_norm: str = "none"  # one of INPUT_NORMS, of what the head reads
    input_eps: float = 0.0


@dataclass(frozen=True)
class Pooling:
    """How a model without logits makes embeddings or scores from its rows."""

    kind: str = "mean"  # one of POOLINGS
    normalize: bool = False  # results are scaled to Euclidean length 1
    dense: tuple[Dense, ...] = ()  # at most MAX_DENSE


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model and the constants of its forward step."""

    architecture: str  # its family's name, for people and writers of files
    hidden_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float  # of norms of either kind
    tied_embeddings: bool
    ropes: tuple[Rope, ...]
    layers: tuple[Layer, ...]
    result_eps: float = 0.0  # of norms of results; 0: rms_norm_eps
    embedding_norm: bool = False  # RMSNorm without weights of embeddings, before their scale
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0  # multiplies logits
    norm: str = "rms"  # one of NORMS, for all norms but those of Q and K
    norm_bias: bool = False
    pooling: Pooling | None = None  # None: the model makes logits
    logit_softcap: float = 0.0  # logits become cap * tanh(logit / cap); 0: unchanged
    output_bias: bool = False  # added to logits
    # P, or 0. Each layer has P values for a token: its part of e = (norm(p / sqrt(hidden_size)) + t
    # * sqrt(P)) / sqrt(2). p is a projection of the first layer's x, and t is the token's row in a
    # table. After its FFN the layer adds norm(out(activation(gate x) * e)), with its FFN's
    # activation.
    per_layer_size: int = 0
    per_layer_rows: int = 0  # of the table, if not one for each token; the tokens behind have row 0
    # N, or 0. Besides x a token has N - 1 further streams (AltUp): parts of a projection of x, as
    # large as x. A router gives r = tanh(R norm(x) / hidden_size). Before each layer every stream
    # is predicted: s[i] += sum of P[i, k] . r s[k]. The layer changes x from y to y + d, then s[i]
    # += (1 + C[i] . r) d, with another r of what x became, also x itself from y on. Behind
    # attention x is (x + z + norm(up down z)) / sqrt(2), with z the normalized y (LAuReL). A
    # layer's own input is added to all streams but x; its gate reads x times a vector. In the end x
    # is the mean of x and a projection of each stream, as large as x.
    n_streams: int = 0
    laurel_rank: int = 0
    # N, or 0. A token has N streams that are mixed (manifold-constrained hyper-connections), which
    # begin as its embedding. Of all of them together, divided by their root mean square, matrices
    # make the weights (a, b, M). Attention reads the sum of a[i] s[i], and from its result y comes
    # s[i] = b[i] y + sum of M[j, i] s[j]; the FFN likewise. The output norm reads such a sum, too.
    # a is a sigmoid plus hyper_eps, b twice a sigmoid, and M's columns and rows are divided by
    # their sums so many times in turn.
    hyper_streams: int = 0
    hyper_iterations: int = 0
    hyper_eps: float = 0.0
    per_layer_projected: bool = False  # there is no table: e = norm(p / sqrt(hidden_size))
    # Rows added to the embedding, by position and, in pooled models, by token type.
    learned_positions: bool = False
    n_token_types: int = 0
    # Factors by which the family has multiplied rows of its matrices at loading, in its own order;
    # adapters were trained without them. None: none, or unknown.
    row_multipliers: tuple[float, ...] | None = None
    # Not None: the model is a tower, which reads pictures. Then vocab_size is 0, context_length the
    # most patches of a picture, and n_positions the number of learned positions.
    patches: Patches | None = None
    n_positions: int = 0
    # Of a model beside a tower with taps: their parts of a row are added behind its first layers.
    n_taps: int = 0
    reader: Reader | None = None  # of which layers with mtp are; None: such a layer is another head

    def for_context(self, longest: int) -> ModelConfig:
        """Return the program for texts of up to ``longest`` tokens, whose angles may differ."""
        return replace(self, ropes=tuple(rope.for_context(longest) for rope in self.ropes))

    @property
    def is_for_short_context(self) -> bool:
        """Whether its angles are valid only up to LongRoPE's original context."""
        return any(
            rope.short_context is not None and rope.factors == rope.short_factors
            for rope in self.ropes
        )

    @property
    def n_layers(self) -> int:
        """The number of layers, a multi-token prediction head included."""
        return len(self.layers)

    @property
    def heads(self) -> Attention:
        """The attention of the first layer that has one."""
        return next(one.attention for one in self.layers if one.attention is not None)

    @property
    def has_states(self) -> bool:
        """Whether a sequence keeps more than keys and values.

        That is states of layers, or the row from which a multi-token prediction head starts.
        """
        starts = self.has_mtp and self.blocks is None
        return starts or any(layer.state is not None for layer in self.layers)

    @property
    def blocks(self) -> Blocks | None:
        """What guesses blocks of tokens; None: another head, or none."""
        heads = (layer.head for layer in self.layers if layer.mtp)
        return next((head for head in heads if isinstance(head, Blocks)), None)

    @property
    def has_mtp(self) -> bool:
        """Whether the last layer is a multi-token prediction head."""
        return self.layers[-1].mtp

    @property
    def n_head_layers(self) -> int:
        """How many of the last layers are a head that predicts further tokens."""
        return sum(layer.mtp for layer in self.layers)

    def ffn_size(self, layer: int) -> int:
        """The inner size of a layer's FFN, or of each of its experts; 0 without an FFN."""
        ffn = self.layers[layer].ffn
        return 0 if ffn is None else ffn.size

    @property
    def sliding_window(self) -> int | None:
        """The largest window of all layers in tokens; None if a layer has none."""
        windows = [
            None if one.attention.compress else one.attention.window
            for one in self.layers
            if one.attention is not None
        ]
        known = [window for window in windows if window is not None]
        return max(known) if windows and len(known) == len(windows) else None
