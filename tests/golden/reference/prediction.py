"""What a head that predicts further tokens computes, from its definition, in float64."""

from dataclasses import replace

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from tests.golden.reference import program
from tests.golden.reference.ffn import Inner, ffn
from tests.golden.reference.parts import Array, norm, rms


def predicted_logits(
    config: ModelConfig, weights: program.Weights, tokens: list[int], guesses: list[int]
) -> tuple[Array, float]:
    """What the head makes of a text and guesses behind it, [1 + guesses][vocab_size]; the margin.

    The model has run all tokens but the last. Row t, from 1 on, is of token t and the row before
    it: the model's, or behind the last token the head's own.
    """
    if config.layers[-1].head is not None:
        return logits_of_taps(config, weights, tokens, guesses)
    index, text = config.n_layers - 1, tokens + guesses
    own = program.of_layer(weights, index)
    before, margin = program.hidden_rows(config, weights, tokens[:-1])
    logits = []
    for end in range(len(tokens), len(text) + 1):
        embedded = program.embedded(config, weights, text[1:end])
        parts = (
            norm(config, own, Role.MTP_EMBEDDING_NORM, embedded),
            norm(config, own, Role.MTP_HIDDEN_NORM, before),
        )
        x = np.concatenate(parts, axis=1) @ own[Role.MTP_PROJECTION].T
        x, near = program.through_layer(config, index, own, x, program.Stored())
        margin = min(margin, near)
        last = norm(config, own, Role.MTP_NORM, x[-1:] * config.layers[index].output_scale)
        logits.append(program.logits_of_rows(config, weights, last)[0])
        before = np.concatenate([before, last])
    return np.stack(logits), float(margin)


def logits_of_taps(
    config: ModelConfig, weights: program.Weights, tokens: list[int], guesses: list[int]
) -> tuple[Array, float]:
    """The same of a head with taps: h is made of x at the taps, then the head's own x."""
    index, text = config.n_layers - 1, tokens + guesses
    layer, own = config.layers[index], program.of_layer(weights, index)
    head, fronts = layer.head, []
    assert head is not None
    assert layer.ffn is not None
    _, margin = program.hidden_rows(config, weights, tokens[:-1], fronts)
    seen = replace(config, rms_norm_eps=head.norm_eps)
    taps = np.concatenate([fronts[tap] for tap in head.taps], axis=1)
    if head.fusion_norm:
        taps = rms(taps, own[Role.HEAD_FUSION_NORM], head.norm_eps)
    before = taps @ own[Role.HEAD_FUSION].T
    table = own[Role.HEAD_EMBEDDING] if head.own_embedding else weights[Role.TOKEN_EMBEDDING, 0]
    logits = []
    for end in range(len(tokens), len(text) + 1):
        embedded = norm(seen, own, Role.MTP_EMBEDDING_NORM, table[text[1:end]])
        hidden = norm(seen, own, Role.MTP_HIDDEN_NORM, before)
        inputs = np.concatenate([embedded, hidden], axis=1)
        x = hidden if head.norm_adds else before
        x = x + program.attention(seen, index, own, inputs, program.Stored())
        inner = Inner(seen, own, layer.row_codes)
        result, near = ffn(layer.ffn, own, norm(seen, own, Role.FFN_NORM, x), inner)
        margin = min(margin, near)
        x = (x + result) * layer.output_scale
        last = norm(seen, own, Role.MTP_NORM, x[-1:])
        if head.outputs:
            made = (last @ own[Role.HEAD_OUTPUT].T)[0]
        else:
            made = program.logits_of_rows(replace(config, logit_scale=1.0), weights, last)[0]
        if head.chooses:
            spread = np.full(config.vocab_size, -1e30)
            spread[own[Role.HEAD_TOKENS].astype(int)] = made
            made = spread
        logits.append(made)
        before = np.concatenate([before, x[-1:]])
    return np.stack(logits), float(margin)
