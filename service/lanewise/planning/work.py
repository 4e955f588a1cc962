"""What a model's tokens cost: bytes read, numbers multiplied."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from lanewise.loading.base.checkpoint import Checkpoint, Role
from lanewise.loading.base.names import is_vector
from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Plain,
)
from lanewise.loading.base.recurrences import (
    ShortConv,
    State,
)
from lanewise.runtime import BLOCK_TOKENS, Model
from lanewise.runtime.targets import EXPERTS, head_role, held_size, target_types, tower_bytes

# Numbers of a token that each part of a layer handles beside products: norm and quantization of
# its input twice, rotation, quantization of what attention gives, activation and its quantization.
NORMS = 4
# What a step multiplies of a head that predicts further tokens: the rest runs between steps.
FED = (Role.MTP_PROJECTION, Role.HEAD_FUSION, Role.ATTN_K, Role.ATTN_V, Role.LATENT_DOWN)
STATE_PASSES = 3  # over the state of a head: it shrinks, something is added, a result is read


WindowShares = tuple[tuple[int | None, float], ...]
WHOLE: WindowShares = ((None, 1.0),)


@dataclass(frozen=True, slots=True)
class Weights:
    """The matrices of one type in one part of a model, as one token uses them."""

    type: str
    weights: float  # multiplied by one token
    n_bytes: float  # read for one token
    of_head: bool = False  # multiplied only where logits are wanted
    of_experts: bool = False


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What steps of a model cost, on any machine."""

    matrices: tuple[Weights, ...]
    expert_share: float  # the part of the experts that one token has; 1 without any
    attention_weights: float  # multiplications for each pair of a token and one that it sees
    values: float  # numbers of one token that are normalized, rotated, activated or quantized
    n_layers: int
    # Of attention and cache: what part has layers whose tokens see so many; None = all before them.
    windows: WindowShares
    kv_token_bytes: float
    held_bytes: int  # all weights in memory, with those of a tower
    moved_state_bytes: float = 0.0  # of a sequence in each step: its states, read and written
    attention_heads: float = inf  # of queries, in the layer with the fewest
    tower_bytes: int = 0  # of what reads pictures

    def bytes_read(self, rows: float) -> float:
        """Bytes of weights that a step of so many rows reads."""
        experts = sum(one.n_bytes for one in self.matrices if one.of_experts)
        all_bytes = sum(one.n_bytes for one in self.matrices)
        return step_bytes(all_bytes, experts, self.expert_share, rows)


def step_bytes(token_bytes: float, expert_bytes: float, expert_share: float, rows: float) -> float:
    """Bytes of weights that a step of so many rows reads, of which one row reads ``token_bytes``.

    Each row has ``expert_share`` of the experts, whichever: together they have that many different
    ones as chance would give them, so this is an estimate where there are any.
    """
    if not expert_bytes:
        return float(token_bytes)
    distinct = (1 - (1 - expert_share) ** rows) / expert_share
    return float(token_bytes + (distinct - 1) * expert_bytes)


def share_of_experts(config: ModelConfig) -> float:
    """The part of a layer's experts that a token has; 1 where there are none."""
    of_layers = (layer.ffn for layer in config.layers)
    return next((ffn.n_used / ffn.n for ffn in of_layers if isinstance(ffn, Experts)), 1.0)


def cached_token_bytes(model: Model, kv_type: str) -> float:
    """What one token takes in the KV cache, in all layers.

    Blocks of groups by window have room that no layer uses where groups differ in size: they do not
    say what is read.
    """
    return model.kv_layout(kv_type).block_bytes / BLOCK_TOKENS


def moved_state_bytes(model: Model) -> float:
    """What each step moves of one sequence's states: all of it, in and out; mostly 0."""
    return 2.0 * model.kv_layout("f16").state_bytes  # which does not depend on the cache


def work_of(
    checkpoint: Checkpoint,
    weights: str | None,
    kv_token_bytes: float,
    moved_state_bytes: float = 0.0,
) -> ModelWork:
    """What a checkpoint costs when its matrices are held as ``weights`` says; reads no weights."""
    config = checkpoint.config
    share = share_of_experts(config)
    head = head_role(config)
    held = 0
    found: dict[tuple[str, bool, bool], tuple[float, float]] = {}
    targets = target_types(checkpoint, weights)
    for tensor, kind in zip(checkpoint.tensors, targets, strict=True):
        n_bytes = held_size(tensor, kind)
        held += n_bytes
        looked_up = {Role.PER_LAYER_EMBEDDING, *({Role.TOKEN_EMBEDDING} - {head})}
        if is_vector(tensor.role) or tensor.role in looked_up:
            continue
        is_fed = tensor.role in FED and config.reader is None
        if config.layers[tensor.layer].mtp and not is_fed:
            continue
        part = share if tensor.role in EXPERTS else 1.0
        key = (kind.name.lower(), tensor.role is head, tensor.role in EXPERTS)
        numbers, size = found.get(key, (0.0, 0.0))
        found[key] = (numbers + part * tensor.rows * tensor.cols, size + part * n_bytes)
    of_tower = tower_bytes(checkpoint, None)
    return ModelWork(
        matrices=tuple(
            Weights(kind, numbers, size, of_head, of_experts)
            for (kind, of_head, of_experts), (numbers, size) in found.items()
        ),
        expert_share=share,
        attention_weights=float(sum(_of_a_token_seen(one) for one in _attentions(config))),
        values=sum(
            NORMS * config.hidden_size
            + _attention_values(one.attention)
            + _state_values(one.state, config.hidden_size)
            + _ffn_values(one.ffn)
            for one in _layers_of(config)
        ),
        n_layers=len(_layers_of(config)),
        windows=_windows(config),
        kv_token_bytes=kv_token_bytes,
        held_bytes=held + of_tower,
        tower_bytes=of_tower,
        moved_state_bytes=moved_state_bytes,
        attention_heads=min((one.n_heads for one in _attentions(config)), default=inf),
    )


def _windows(config: ModelConfig) -> WindowShares:
    counts: dict[int | None, float] = {}
    for one in _attentions(config):
        of_index = _of_a_token_scored(one) / _of_a_token_seen(one)
        for window, share in ((one.index_topk or one.window, 1 - of_index), (None, of_index)):
            if share > 0:
                counts[window] = counts.get(window, 0) + share
    total = sum(counts.values())
    return tuple((window, count / total) for window, count in counts.items())


def _attentions(config: ModelConfig) -> list[Attention]:
    return [layer.attention for layer in _layers_of(config) if layer.attention is not None]


def _layers_of(config: ModelConfig) -> Sequence[Layer]:
    """Without a head that predicts further tokens: what its guesses cost, they are to gain."""
    return config.layers[: config.n_layers - config.n_head_layers]


def _state_values(state: State | None, hidden: int) -> float:
    """Numbers that convolutions multiply, and rows of a state that one token reads and changes."""
    if state is None:
        return 0
    if isinstance(state, ShortConv):
        return state.taps * hidden
    return state.taps * state.channels + STATE_PASSES * state.inner * state.key_dim


def _of_a_token_seen(attention: Attention) -> int:
    """Products of queries and keys, of probabilities and values, and of index queries and keys."""
    if attention.latent_rank:
        row = 2 * attention.latent_rank + attention.rope_dim
        return attention.n_heads * row + _of_a_token_scored(attention)
    both = attention.n_heads * (attention.head_dim + attention.output_dim)
    return both + _of_a_token_scored(attention)


def _of_a_token_scored(attention: Attention) -> int:
    """Products of index queries and keys: with all tokens before, not only those chosen."""
    return attention.index_heads * attention.index_dim


def _attention_values(attention: Attention | None) -> float:
    if attention is None:
        return 0
    if attention.latent_rank:
        row = attention.latent_rank + attention.rope_dim
        queries = attention.n_heads * (attention.head_dim + row + attention.latent_rank)
        return queries + 2 * attention.query_rank + row
    heads = attention.n_heads + attention.n_kv_heads
    return heads * (attention.head_dim + attention.output_dim)


def _ffn_values(ffn: Gated | Plain | Experts | None) -> float:
    if ffn is None:
        return 0
    if isinstance(ffn, Plain):
        return ffn.size
    if isinstance(ffn, Gated):
        return 2 * ffn.size
    return (1 + ffn.gated) * (ffn.n_used * ffn.size + ffn.shared_size)
