"""Random programs with latent attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lanewise.loading.base.program import Attention, Layer, ModelConfig


def with_index(rng: np.random.Generator, latent: Attention, before: list[Layer]) -> Attention:
    """Sparse attention, with an index of its own or that of a layer before; or all tokens."""
    plain = latent.window is not None or latent.rope is None or not latent.query_rank
    if plain or rng.random() < 0.3:
        return latent
    attentions = [one.attention for one in before if one.attention is not None]
    found = [one for one in attentions if one.index_heads]
    if found and rng.random() < 0.5:
        return replace(latent, index_topk=found[-1].index_topk)
    return replace(
        latent,
        index_topk=int(rng.integers(1, 40)),
        index_heads=int(rng.choice([1, 3, 4, 13])),
        index_dim=latent.rope_dim + 2 * int(rng.integers(0, 12)),
    )


def with_latent_layers(rng: np.random.Generator, config: ModelConfig) -> ModelConfig:
    """The same program whose attention, or some of it, keeps latent rows."""
    attentions = [layer.attention for layer in config.layers if layer.attention is not None]
    if any(one.kv_layer is not None for one in attentions):
        return config
    rank, changed = 32 * int(rng.integers(1, 4)), []
    for layer in config.layers:
        attention = layer.attention
        if attention is None or attention.rope is None or rng.random() < 0.2:
            changed.append(layer)
            continue
        turned = config.ropes[attention.rope].rotated
        latent = Attention(
            n_heads=int(rng.choice([1, 3, 4, 20, 34])),
            n_kv_heads=1,
            head_dim=turned + 2 * int(rng.integers(1, 20)),
            rope=attention.rope,
            window=attention.window,
            output_bias=attention.output_bias,
            sinks=attention.sinks,
            position_scale=attention.position_scale,
            score_softcap=attention.score_softcap,
            latent_rank=rank,
            rope_dim=turned,
            value_dim=32 * int(rng.integers(1, 3)),
            query_rank=int(rng.choice([0, 24, 96])),
            latent_eps=1e-6,
        )
        if rng.random() < 0.2:
            latent = replace(latent, rope=None)
        if rng.random() < 0.4:
            gate = "output_gate" if rng.random() < 0.5 else "head_gate"
            softplus = bool(rng.random() < 0.3)
            latent = replace(latent, gate_softplus=softplus, **{gate: True})
        whole = latent if layer.mtp else with_index(rng, latent, changed)
        changed.append(replace(layer, attention=whole))
    return replace(config, layers=tuple(changed))
