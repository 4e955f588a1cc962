"""What a head that predicts further tokens computes, from its definition, in float64."""

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from tests.golden.reference import program
from tests.golden.reference.parts import Array, norm


def predicted_logits(
    config: ModelConfig, weights: program.Weights, tokens: list[int], guesses: list[int]
) -> tuple[Array, float]:
    """What the head makes of a text and guesses behind it, [1 + guesses][vocab_size]; the margin.

    The model has run all tokens but the last. Row t, from 1 on, is of token t and the row before
    it: the model's, or behind the last token the head's own.
    """
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
