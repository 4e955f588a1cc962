"""Layers that keep a state of each sequence, in a program (program.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ShortConv:
    """out(c * conv(b * x)) with b, c, x = in(x): a causal convolution of each channel (LFM2)."""

    taps: int  # tokens that a result depends on, its own included


@dataclass(frozen=True)
class Recurrence:
    """A convolution followed by a state of (key_dim, value_dim) for each head."""

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
        """Channels of the convolution: the values, and the keys twice."""
        return self.inner + 2 * self.n_key_heads * self.key_dim


@dataclass(frozen=True)
class GatedDelta(Recurrence):
    """The gated delta rule (Qwen3-Next).

    q, k, v = silu(conv(in(x))), q and k normalized to length 1, q divided by sqrt(key_dim). With g
    = exp(A * softplus(a + bias)) and beta = sigmoid(b): S *= g; S += k (beta (v - S^T k))^T; o =
    S^T q. Then out(rmsnorm(o) * silu(z)), one norm for each head.
    """

    keys_in_turn: bool = False  # head h has key head h % n_key_heads, not h // (heads of each)


@dataclass(frozen=True)
class Ssd(Recurrence):
    """State space duality (Mamba 2); the groups of B and C are its key heads.

    x, B, C = silu(conv(in(x)) + bias). With d = softplus(dt + bias): S = exp(d A) S + B (d x)^T; y
    = S^T C + D x. Then out(rmsnorm(y * silu(z))), with norms over ``norm_size`` values, or no norm
    if that is None.
    """

    norm_size: int | None = None
    conv_bias: bool = True


@dataclass(frozen=True)
class ChannelDelta(Recurrence):
    """The gated delta rule with a decay for each channel of a key (Kimi Linear).

    As GatedDelta, but q, k and v have a matrix each, and S *= g multiplies row i by g[i]. With a
    ``decay_floor`` f, g = exp(-f * sigmoid(-A * (a + bias))). Then out(rmsnorm(o) * sigmoid(z)).
    """

    decay_rank: int = 0  # a is a product of a product of this size; 0: of x
    gate_rank: int = 0  # z likewise
    decay_floor: float = 0.0  # decays are at least exp(-decay_floor); 0: there is no bound


State = ShortConv | GatedDelta | Ssd | ChannelDelta
STATE_KINDS: Mapping[str, type[ShortConv] | type[GatedDelta] | type[Ssd] | type[ChannelDelta]] = {
    "short_conv": ShortConv,
    "gated_delta": GatedDelta,
    "ssd": Ssd,
    "channel_delta": ChannelDelta,
}
