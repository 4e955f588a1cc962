"""MPNet: BERT whose scores also change by the distance of tokens, as T5's do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import ModelConfig, Plain
from lanewise.loading.families.bert import POSITIONS
from lanewise.loading.families.common import curve
from lanewise.loading.families.encoders import (
    classifier_pooling,
    encoder_attention,
    encoder_family,
    give_outside_layers,
    give_post_norm_layers,
    post_norm_model,
)
from lanewise.loading.families.roberta import HEADS
from lanewise.loading.files.rearranging import Rearranged, Rows, without_prefixes
from lanewise.loading.programs.model_file import ModelFile

PREFIXES = ("mpnet.",)
OF_LAYER = {
    "attention.attn.q": Role.ATTN_Q,
    "attention.attn.k": Role.ATTN_K,
    "attention.attn.v": Role.ATTN_V,
    "attention.attn.o": Role.ATTN_OUTPUT,
    "attention.LayerNorm": Role.FFN_NORM,
    "intermediate.dense": Role.FFN_UP,
    "output.dense": Role.FFN_DOWN,
}
BUCKETS, REACH = 32, 128  # the reference has no others
CHANGES = "encoder.relative_attention_bias.weight"  # [buckets, heads]
FIRST_POSITION = 2  # rows of the position table before it are unused


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    if file.integer("relative_attention_num_buckets", default=BUCKETS) != BUCKETS:
        raise file.fail("relative_attention_num_buckets", f"{BUCKETS}")
    positions = file.integer("max_position_embeddings")
    if positions <= FIRST_POSITION:
        raise file.fail("max_position_embeddings", f"more than {FIRST_POSITION}")
    tensors = without_prefixes(file.tensors, PREFIXES)
    ffn = Plain(file.integer("intermediate_size"), True, curve(file, "hidden_act", "gelu"))
    attention = replace(encoder_attention(file), distances=REACH)
    model = post_norm_model(
        *(file, "mpnet", attention, ffn, positions - FIRST_POSITION),
        classifier_pooling(tensors, file.integer("hidden_size"), HEADS[1]),
    )
    return replace(model, learned_positions=True)


def bucket_of(distance: int) -> int:
    """Return the bucket of a key's position minus the query's.

    Half of the buckets are for later keys. Of each half, the first 8 have a distance each, and each
    pair of the others twice the distances of the pair before.
    """
    half, n = BUCKETS // 2, abs(distance)
    exact = half // 2
    doubled = (n * n // exact**2).bit_length() - 1  # twice the logarithm of n / exact, rounded down
    return half * (distance > 0) + (n if n < exact else min(half - 1, exact + doubled))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; what scores change by is listed by distance, for every layer."""
    tensors.remove_prefixes(*PREFIXES)
    give_outside_layers(tensors, config, HEADS)
    tensors.rename(POSITIONS, tensors.usual(Role.POSITION_EMBEDDING))
    name = tensors.usual(Role.POSITION_EMBEDDING)
    if name in tensors.out and len(tensors.out[name].shape) == 2:
        tensors.drop_rows(name, FIRST_POSITION)
    give_post_norm_layers(tensors, config, "encoder.layer.{}.", OF_LAYER, "output.LayerNorm")
    list_changes(tensors, config)


def list_changes(tensors: Rearranged, config: ModelConfig) -> None:
    """Give each layer the changes of scores by head and distance."""
    source, n_heads = tensors.out.get(CHANGES), config.heads.n_heads
    if source is None:
        return
    if source.shape != (BUCKETS, n_heads):
        raise ModelFileError(
            f"{source.where}: tensor {CHANGES!r} has shape {list(source.shape)};"
            f" [{BUCKETS}, {n_heads}] is needed"
        )
    buckets = np.array([bucket_of(distance) for distance in range(-REACH, REACH + 1)])

    def by_distance(rows: Rows) -> Mapping[str, Rows]:
        return {CHANGES: rows.reshape(n_heads, BUCKETS)[:, buckets].reshape(-1)}

    tensors.transpose(CHANGES)
    tensors.ravel(CHANGES)
    tensors.take_rows(CHANGES, n_heads * BUCKETS, by_distance)
    listed = tensors.out.pop(CHANGES)
    for number in range(config.n_layers):
        tensors.out[tensors.usual(Role.ATTN_DISTANCES, number)] = listed


FAMILY = encoder_family("mpnet", program, hf_tensors)
