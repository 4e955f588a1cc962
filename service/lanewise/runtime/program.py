"""A model's program as the library takes it: ``lw_model_config``."""

from typing import Any

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.program import (
    Attention,
    Experts,
    Gated,
    GatedDelta,
    ModelConfig,
    Plain,
    Rope,
    ShortConv,
    Ssd,
    State,
)
from lanewise.runtime.library import Native

WIRINGS = {
    "in_turn": "LW_IN_TURN",
    "parallel": "LW_PARALLEL",
    "parallel_one_norm": "LW_PARALLEL_ONE_NORM",
}
QK_NORMS = {
    "none": "LW_QK_NORM_NONE",
    "head": "LW_QK_NORM_HEAD",
    "whole": "LW_QK_NORM_WHOLE",
    "turned": "LW_QK_NORM_TURNED",
    "layer": "LW_QK_NORM_LAYER",
}
ROUTERS = {
    "softmax": "LW_ROUTER_SOFTMAX",
    "top_softmax": "LW_ROUTER_TOP_SOFTMAX",
    "sigmoid": "LW_ROUTER_SIGMOID",
}
ACTIVATIONS = {
    "silu": "LW_SILU",
    "clamped": "LW_CLAMPED_SWIGLU",
    "gelu": "LW_GELU",
    "gelu_tanh": "LW_GELU_TANH",
    "relu": "LW_RELU",
    "tanh": "LW_TANH",
    "identity": "LW_IDENTITY",
    "relu_squared": "LW_RELU_SQUARED",
    "xielu": "LW_XIELU",
}
NORMS = {"rms": "LW_NORM_RMS", "layer": "LW_NORM_LAYER"}


class NativeProgram:
    """An ``lw_model_config`` and the memory that it points to."""

    def __init__(self, native: Native, config: ModelConfig) -> None:
        self._native = native
        self._kept: list[Any] = []
        ffi = native.ffi
        ropes = ffi.new("lw_rope[]", [self._rope(rope) for rope in config.ropes])
        layers = ffi.new("lw_layer_config[]", config.n_layers)
        for layer, out in zip(config.layers, layers, strict=True):
            if layer.attention is not None:
                self._attention(layer.attention, out.attention)
            if layer.state is not None:
                self._state(layer.state, config.rms_norm_eps, out.state)
            self._ffn(layer.ffn, out.ffn)
            out.attn_norm_replaces = int(layer.attn_norm_replaces)
            out.ffn_norm_replaces = int(layer.ffn_norm_replaces)
            out.result_norms = int(layer.result_norms)
            out.no_input_norms = int(layer.no_input_norms)
            out.wiring = getattr(native.lib, WIRINGS[layer.wiring])
            out.mtp = int(layer.mtp)
            out.output_scale = 0 if layer.output_scale == 1.0 else layer.output_scale
        pooling = config.pooling
        dense = ffi.new("lw_dense_config[]", 0 if pooling is None else len(pooling.dense))
        for one, out in zip(pooling.dense if pooling else (), dense, strict=True):
            out.outputs, out.bias, out.norm = one.outputs, int(one.bias), int(one.norm)
            out.activation = getattr(native.lib, ACTIVATIONS[one.activation])
        self._kept += [ropes, layers, dense]
        # x is held divided by the scale of what is added to it: norms do not see that.
        residual = config.residual_scale
        self.struct = ffi.new(
            "lw_model_config*",
            {
                "n_layers": config.n_layers,
                "hidden_size": config.hidden_size,
                "vocab_size": config.vocab_size,
                "context_length": config.context_length,
                "tied_embeddings": int(config.tied_embeddings),
                "rms_norm_eps": config.rms_norm_eps / residual**2,
                "embedding_scale": config.embedding_scale / residual,
                "logit_scale": config.logit_scale,
                "logit_softcap": config.logit_softcap,
                "output_bias": int(config.output_bias),
                "per_layer_size": config.per_layer_size,
                "n_ropes": len(config.ropes),
                "ropes": ropes,
                "layers": layers,
                "norm": getattr(native.lib, NORMS[config.norm]),
                "norm_bias": int(config.norm_bias),
                "pooled": int(pooling is not None),
                "n_positions": config.context_length if config.learned_positions else 0,
                "n_token_types": config.n_token_types,
                "n_dense": len(dense),
                "dense": dense,
            },
        )

    def _rope(self, rope: Rope) -> dict[str, Any]:
        factors = self._native.ffi.NULL
        if rope.factors is not None:
            if len(rope.factors) != rope.rotated // 2:
                raise ModelFileError(
                    f"rope factors: {len(rope.factors)} values; accepted: half of the"
                    f" dimensions that turn, {rope.rotated // 2}"
                )
            factors = self._native.ffi.new("float[]", list(rope.factors))
            self._kept.append(factors)
        return {
            "theta": rope.theta,
            "rotated": rope.rotated,
            "scale": rope.scale,
            "factors": factors,
        }

    def _attention(self, attention: Attention, out: Any) -> None:
        lib = self._native.lib
        for name in (
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "score_scale",
            "score_softcap",
            "qkv_clip",
        ):
            setattr(out, name, getattr(attention, name))
        flags = ("qkv_bias", "output_bias", "sinks", "both_ways", "output_gate")
        for name in ("latent_rank", "rope_dim", "value_dim", "query_rank", "latent_eps"):
            setattr(out, name, getattr(attention, name))
        for name in (*flags, "values_are_keys", "value_norm"):
            setattr(out, name, int(getattr(attention, name)))
        if attention.alibi:
            out.alibi = 2 if attention.scaled_alibi else 1
        if attention.head_gate:
            out.output_gate = 2
        if attention.kv_layer is not None:
            out.shares_kv, out.kv_layer = 1, attention.kv_layer
        out.window = attention.window or 0
        out.rope = lib.LW_NO_ROPE if attention.rope is None else attention.rope
        out.qk_norm = getattr(lib, QK_NORMS[attention.qk_norm])
        if attention.position_scale is not None:
            out.position_beta, out.position_original = attention.position_scale

    def _state(self, state: State, norm_eps: float, out: Any) -> None:
        lib = self._native.lib
        kinds = {ShortConv: lib.LW_SHORT_CONV, GatedDelta: lib.LW_GATED_DELTA, Ssd: lib.LW_SSD}
        out.kind, out.taps = kinds[type(state)], state.taps
        if isinstance(state, ShortConv):
            return
        for name in ("n_heads", "value_dim", "n_key_heads", "key_dim"):
            setattr(out, name, getattr(state, name))
        out.norm_eps = norm_eps
        if isinstance(state, GatedDelta):
            out.keys_in_turn = int(state.keys_in_turn)
        else:
            out.norm_size = state.norm_size or 0
            out.conv_bias = int(state.conv_bias)

    def _ffn(self, ffn: Gated | Plain | Experts | None, out: Any) -> None:
        lib = self._native.lib
        if ffn is None:
            out.kind = lib.LW_FFN_NONE
            return
        out.size, out.bias, out.down_bias = ffn.size, int(ffn.bias), int(ffn.down_bias)
        out.activation = getattr(lib, ACTIVATIONS[ffn.activation])
        if not isinstance(ffn, Experts):
            out.limit, out.alpha = ffn.limit, ffn.alpha
            out.kind = lib.LW_FFN_GATED if isinstance(ffn, Gated) else lib.LW_FFN_PLAIN
            return
        out.kind = lib.LW_FFN_EXPERTS
        out.n_experts, out.n_groups = ffn.n, ffn.groups
        out.divisor_extra, out.divisor_least = ffn.denominator_eps, ffn.denominator_least
        for name in ("n_used", "groups_used", "scale", "limit", "alpha", "shared_size"):
            setattr(out, name, getattr(ffn, name))
        for name in (
            "router_bias",
            "choice_bias",
            "groups_by_best",
            "renormalize",
            "shared_gate",
            "own_norms",
        ):
            setattr(out, name, int(getattr(ffn, name)))
        out.ungated = int(not ffn.gated)
        out.router = getattr(lib, ROUTERS[ffn.router])
