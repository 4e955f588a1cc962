"""A model as a program: what its layers are and in which order, whatever family it is of.

Everything that computes reads these records and nothing else. Numbers that enter the arithmetic
are float32 values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace


def plain_score_scale(head_dim: int) -> float:
    """Return 1 / sqrt(head_dim), each operation rounded to float32."""
    return _f32(1.0 / _f32(math.sqrt(head_dim)))


def _f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class Rope:
    """One set of angles; layers name theirs by its index."""

    theta: float
    rotated: int  # the first dimensions of each head, an even number; the rest passes through
    factors: tuple[float, ...] | None = None  # rotated / 2 divisors of the frequencies; None: all 1
    scale: float = 1.0  # of cosines and sines
    # LongRoPE: divisors in the place of ``factors`` where no text is longer than short_context.
    short_factors: tuple[float, ...] | None = None
    short_context: int | None = None

    def for_context(self, longest: int) -> Rope:
        """Return the angles for texts of up to ``longest`` tokens."""
        if self.short_context is None or longest > self.short_context:
            return self
        return replace(self, factors=self.short_factors)


@dataclass(frozen=True)
class Attention:
    """Attention to earlier tokens or, in models that are pooled, to all of the text."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope: int | None  # index into ModelConfig.ropes; None: no positions
    window: int | None = None  # tokens that each query sees, its own included; None: all
    both_ways: bool = False  # a query also sees what is after it, as far as the window reaches
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = "none"  # of QK_NORMS
    alibi: bool = False  # scores fall with the distance: head by head from 1/2 down to 1/256
    scaled_alibi: bool = False  # by that times score_scale; only with alibi
    sinks: bool = False  # one logit for each head in the denominator of the softmax
    score_scale: float = 0.0  # of the products of queries and keys; 0 becomes 1 / sqrt(head_dim)
    # (beta, n): queries at position p are multiplied by 1 + beta * ln(1 + floor(p / n)).
    position_scale: tuple[float, int] | None = None
    output_gate: bool = False  # results are multiplied by sigmoid of a product of their own
    head_gate: bool = False  # likewise, those of each head by one number; not beside output_gate
    score_softcap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay
    values_are_keys: bool = False  # V is what K is before its norm and its turn
    value_norm: bool = False  # RMSNorm over each head of V, without weights
    qkv_clip: float = 0.0  # 0, or Q and K are limited to it before they turn, V before its norm
    kv_layer: int | None = None  # an earlier layer, whose K and V are read; None: its own
    # Latent attention (MLA), where there is a latent_rank. Of (c, r), a product of the input, a
    # token keeps one row for all heads: norm(c), then r, which turns. The last rope_dim values of
    # each query turn, the others are (keys^T c): the score is that of (keys n, t) and the row, and
    # results are values (the weighted sum of c). n_kv_heads is 1, and there are no biases of Q, K
    # and V, norms of heads, gates, slopes, and nothing shared.
    latent_rank: int = 0
    rope_dim: int = 0  # all that its rope turns
    value_dim: int = 0  # of a head's result
    query_rank: int = 0  # 0, or queries are a product of a norm of a product of so many values
    latent_eps: float = 0.0  # of both norms

    @property
    def turning(self) -> int:
        """Dimensions of a head that angles are for."""
        return self.rope_dim or self.head_dim

    @property
    def output_dim(self) -> int:
        """Values of a head that attention's output is made of."""
        return self.value_dim or self.head_dim

    def __post_init__(self) -> None:
        """Fill in the scale that most models have."""
        if self.score_scale == 0.0 and self.head_dim > 0:
            object.__setattr__(self, "score_scale", plain_score_scale(self.head_dim))


# RMSNorm of queries and keys before RoPE: none, over each head, or over the whole projection; over
# each head after RoPE; LayerNorm over each head before RoPE, each with weights of its own.
QK_NORMS = ("none", "head", "whole", "turned", "layer")


@dataclass(frozen=True)
class ShortConv:
    """out(c * conv(b * x)) with b, c, x = in(x): a causal convolution of each channel (LFM2)."""

    taps: int  # tokens that it sees, its own included


@dataclass(frozen=True)
class Recurrence:
    """What runs a convolution, then keeps a state of (key_dim, value_dim) for each head."""

    taps: int
    n_heads: int
    value_dim: int  # of a head
    n_key_heads: int
    key_dim: int

    @property
    def inner(self) -> int:
        """Values of all heads together."""
        return self.n_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution runs over: values, and keys twice."""
        return self.inner + 2 * self.n_key_heads * self.key_dim


@dataclass(frozen=True)
class GatedDelta(Recurrence):
    """The gated delta rule (Qwen3-Next).

    q, k, v = silu(conv(in(x))), q and k of length 1, q divided by sqrt(key_dim). With
    g = exp(A * softplus(a + bias)) and beta = sigmoid(b): S *= g; S += k (beta (v - S^T k))^T;
    o = S^T q. Then out(rmsnorm(o) * silu(z)), norms over a head.
    """

    keys_in_turn: bool = False  # head h has key head h % n_key_heads, not h // (heads of each)


@dataclass(frozen=True)
class Ssd(Recurrence):
    """State space duality (Mamba 2): key heads are the groups of B and C.

    x, B, C = silu(conv(in(x)) + bias). With d = softplus(dt + bias):
    S = exp(d A) S + B (d x)^T; y = S^T C + D x. Then out(rmsnorm(y * silu(z))), norms over
    ``norm_size`` values, or none where that is None.
    """

    norm_size: int | None = None
    conv_bias: bool = True


State = ShortConv | GatedDelta | Ssd
STATE_KINDS: Mapping[str, type[ShortConv] | type[GatedDelta] | type[Ssd]] = {
    "short_conv": ShortConv,
    "gated_delta": GatedDelta,
    "ssd": Ssd,
}


@dataclass(frozen=True)
class Gated:
    """down(activation(gate x) * up x)."""

    size: int
    bias: bool = False  # of gate, up and down
    activation: str = "silu"  # of CURVES
    down_bias: bool = False  # of down, where gate and up have none
    limit: float = 0.0  # of "xielu"
    alpha: float = 0.0  # of "xielu"


@dataclass(frozen=True)
class Plain:
    """down(activation(up x))."""

    size: int
    bias: bool = False  # of up and down
    activation: str = "gelu"  # of CURVES
    down_bias: bool = False  # of down, where up has none
    limit: float = 0.0  # of "xielu"
    alpha: float = 0.0  # of "xielu"


@dataclass(frozen=True)
class Experts:
    """A router that chooses some of many layers for each token, and perhaps a shared one.

    Each, the shared one too, is down(activation(gate x, up x)), or where they are not ``gated``
    down(activation(up x)).
    """

    n: int
    n_used: int
    size: int
    router: str  # of ROUTERS
    router_bias: bool = False  # added to the router's logits
    choice_bias: bool = False  # added to the scores for the choice alone
    groups: int = 1  # the choice is limited to the best groups: the sums of each one's two best
    groups_used: int = 1
    groups_by_best: bool = False  # the groups' best ones count alone
    renormalize: bool = False  # chosen weights are divided by their sum ...
    denominator_eps: float = 0.0  # ... plus this
    denominator_least: float = 0.0  # ... which is at least this
    scale: float = 1.0  # of the weights, after all that
    activation: str = "silu"  # of CURVES, or "clamped" where they are gated
    limit: float = 0.0  # of "clamped"
    alpha: float = 0.0  # of "clamped"
    bias: bool = False  # of each expert's matrices
    down_bias: bool = False  # one for all experts, added to their weighted sum
    shared_size: int = 0  # of the shared expert; 0: there is none
    shared_gate: bool = False  # the shared expert's result is multiplied by sigmoid(w . x)
    gated: bool = True
    # The router, the experts and the shared one read norms of x of their own; the shared result and
    # the sum of the others go through norms before they are added up. Weights of experts are
    # multiplied by a number of each, last.
    own_norms: bool = False


FFN_KINDS: Mapping[str, type[Gated] | type[Plain] | type[Experts]] = {
    "gated": Gated,
    "plain": Plain,
    "experts": Experts,
}

# softmax over all logits, then the largest; the largest logits, then softmax over those; sigmoid.
ROUTERS = ("softmax", "top_softmax", "sigmoid")

# x times: sigmoid(x); the normal distribution up to x; its approximation with tanh; 1 if x > 0.
# x^2 if x > 0. Of layers that are not experts also xIELU, which is alpha x^2 + x / 2 if x > 0,
# otherwise limit (exp(min(x, -1e-6)) - 1 - x) + x / 2.
CURVES = ("silu", "gelu", "gelu_tanh", "relu", "relu_squared")
FFN_CURVES = (*CURVES, "xielu")
# curve(g) * u; or (u' + 1) * g' * sigmoid(alpha * g'), g' = min(g, limit), u' = clamp(u, +-limit).
ACTIVATIONS = (*CURVES, "clamped")


@dataclass(frozen=True)
class Layer:
    """x += attention(norm(x)); x += ffn(norm(x)); both times ModelConfig.residual_scale.

    Where a norm replaces x, it is x = norm(x) before the addition. Layers that normalize after each
    addition are those all of whose norms replace: the first one's is that of the embedding, each
    further one's, and the output norm, that of the layer before.

    With ``result_norms`` what is added is norm(attention(...)) and norm(ffn(...)), by norms of
    their own; not with experts, biases of attention's output, of down or of norms, nor with a
    residual_scale. With ``no_input_norms`` too, what attention and ffn read is x.

    What has a state stands in the place of attention, or beside it: then both read the same
    norm(x), and attention's result is added first. A layer has one of the three at least.

    Where ``wiring`` is not "in_turn" there are attention and ffn, both of the same x, attention
    added first; "parallel_one_norm": of the same norm(x).

    With ``mtp``, only of the last one, it is no layer of the model but a head that predicts the
    token after next: its x at token t is projection(norm(embedding of t), norm(h)), h the row
    before t behind the output norm, or behind its own norm, where the head made it itself. It
    attends to its own rows, from the second token on; the model's head makes its logits.
    """

    attention: Attention | None
    ffn: Gated | Plain | Experts | None
    attn_norm_replaces: bool = False
    ffn_norm_replaces: bool = False
    result_norms: bool = False
    state: State | None = None
    no_input_norms: bool = False
    wiring: str = "in_turn"  # of WIRINGS
    output_scale: float = 1.0  # x is multiplied by it at the layer's end
    mtp: bool = False


WIRINGS = ("in_turn", "parallel", "parallel_one_norm")
# RMSNorm; LayerNorm, with a bias where ModelConfig.norm_bias says so.
NORMS = ("rms", "layer")
# Of a text's rows: each is a result; their mean; the first one; the last one.
POOLINGS = ("none", "mean", "cls", "last")
# Of dense heads: CURVES, and two more.
DENSE_CURVES = (*CURVES, "tanh", "identity")
MAX_DENSE = 4


@dataclass(frozen=True)
class Dense:
    """What pooled rows go through: activation(W x + bias), then perhaps a norm."""

    outputs: int
    bias: bool = False
    activation: str = "identity"  # of DENSE_CURVES
    norm: bool = False


@dataclass(frozen=True)
class Pooling:
    """What a model has in the place of a head that makes logits: embeddings, scores of pairs."""

    kind: str = "mean"  # of POOLINGS
    normalize: bool = False  # results are divided by their Euclidean length
    dense: tuple[Dense, ...] = ()  # at most MAX_DENSE


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model and the constants of its forward step."""

    architecture: str  # its family, for people and for writers of files
    hidden_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float  # of norms of either kind
    tied_embeddings: bool
    ropes: tuple[Rope, ...]
    layers: tuple[Layer, ...]
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0  # logits are multiplied by it
    norm: str = "rms"  # of NORMS, of all norms but those of Q and K
    norm_bias: bool = False
    pooling: Pooling | None = None  # None: it makes logits
    logit_softcap: float = 0.0  # logits become cap * tanh(logit / cap); 0: they stay
    output_bias: bool = False  # of logits
    # P, 0: none. Every layer has P values of a token for itself,
    # e = (norm(p / sqrt(hidden_size)) + t * sqrt(P)) / sqrt(2): its P of a projection of the first
    # layer's x and of the token's row in a table. Behind its FFN it adds
    # norm(out(activation(gate x) * e)), with its FFN's activation.
    per_layer_size: int = 0
    # Rows that are added to the embedding's, by position and, in pooled models, by token type.
    learned_positions: bool = False
    n_token_types: int = 0
    # What the family has multiplied rows of its matrices by as they were loaded, in an order of its
    # own; adapters were trained without that. None: nothing, or not known.
    row_multipliers: tuple[float, ...] | None = None

    def for_context(self, longest: int) -> ModelConfig:
        """Return the program for texts of up to ``longest`` tokens, which may turn otherwise."""
        return replace(self, ropes=tuple(rope.for_context(longest) for rope in self.ropes))

    @property
    def is_for_short_context(self) -> bool:
        """Whether its angles are those of texts up to an original context only."""
        return any(
            rope.short_context is not None and rope.factors == rope.short_factors
            for rope in self.ropes
        )

    @property
    def n_layers(self) -> int:
        """How many layers there are, a head that predicts further tokens among them."""
        return len(self.layers)

    @property
    def heads(self) -> Attention:
        """The attention of the first layer that has one."""
        return next(one.attention for one in self.layers if one.attention is not None)

    @property
    def has_states(self) -> bool:
        """Whether something is kept of each sequence beside keys and values.

        Those are states of layers, and the row that a head which predicts further tokens begins at.
        """
        return self.has_mtp or any(layer.state is not None for layer in self.layers)

    @property
    def has_mtp(self) -> bool:
        """Whether the last layer is a head that predicts further tokens."""
        return self.layers[-1].mtp

    def ffn_size(self, layer: int) -> int:
        """The inner size of a layer's FFN, or of each expert; 0 if it has none."""
        ffn = self.layers[layer].ffn
        return 0 if ffn is None else ffn.size

    @property
    def sliding_window(self) -> int | None:
        """Tokens back to which some layer sees; None if one sees them all."""
        windows = [one.attention.window for one in self.layers if one.attention is not None]
        known = [window for window in windows if window is not None]
        return max(known) if windows and len(known) == len(windows) else None
