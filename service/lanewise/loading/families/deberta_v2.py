"""DeBERTa V2 and V3: BERT with disentangled attention to what tokens are and to where they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import HF
from lanewise.loading.base.program import Dense, ModelConfig, Plain, Pooling
from lanewise.loading.families.bert import OF_LAYER as OF_BERT
from lanewise.loading.families.bert import POSITIONS
from lanewise.loading.families.common import check_values, curve
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    POOLER,
    classifier,
    encoder_attention,
    encoder_family,
    give_outside_layers,
    give_post_norm_layers,
    post_norm_model,
)
from lanewise.loading.families.exact_products import (
    MOST_INPUTS,
    exact_layernorm,
    exact_product,
)
from lanewise.loading.files.rearranging import Floats, Rearranged, without_prefixes
from lanewise.loading.programs.model_file import ModelFile

Project = Callable[..., Floats]
PREFIXES = ("deberta.",)
MUST_BE = {
    "relative_attention": (True,),
    "conv_kernel_size": (0, None),
}
KINDS = {"c2p", "p2c"}  # products of both that attention has
OF_LAYER = {
    "attention.self.query_proj": Role.ATTN_Q,
    "attention.self.key_proj": Role.ATTN_K,
    "attention.self.value_proj": Role.ATTN_V,
} | {name: role for name, role in OF_BERT.items() if ".self." not in name and "mlp" not in name}
EMBEDDINGS, NORM = "encoder.rel_embeddings.weight", "encoder.LayerNorm"
LAYER = "encoder.layer.{}."
# Projections of the embeddings of distances, where layers do not use those of tokens.
OWN = {"query_proj": "pos_query_proj", "key_proj": "pos_key_proj"}
UNUSED_PREFIXES = ("lm_predictions.", "mask_predictions.")


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    check_values(file, MUST_BE)
    if not file.flag("relative_attention", default=False):
        raise file.fail("relative_attention", "true")
    found = file.raw("pos_att_type")
    kinds = found.lower().split("|") if isinstance(found, str) else found
    if not isinstance(kinds, list) or {str(one).strip() for one in kinds} != KINDS:
        raise file.fail("pos_att_type", "'p2c|c2p'")
    hidden, context = file.integer("hidden_size"), file.integer("max_position_embeddings")
    if hidden > MOST_INPUTS:
        raise file.fail("hidden_size", f"at most {MOST_INPUTS}")
    if file.integer("embedding_size", default=hidden) != hidden:
        raise file.fail("embedding_size", f"hidden_size, {hidden},")
    plain = encoder_attention(file)
    if file.integer("attention_head_size", default=plain.head_dim) != plain.head_dim:
        raise file.fail("attention_head_size", f"{plain.head_dim}")
    scale = round_to_f32(1 / round_to_f32(math.sqrt(3 * plain.head_dim)))
    attention = replace(plain, score_scale=scale, distances=context + 30, disentangled=True)
    ffn = Plain(file.integer("intermediate_size"), True, curve(file, "hidden_act", "gelu"))
    model = post_norm_model(file, "deberta-v2", attention, ffn, context, read_pooling(file))
    span(file)
    file.text("norm_rel_ebd", default="none")
    file.flag("share_att_key", default=False)
    return replace(
        model,
        learned_positions=file.flag("position_biased_input", default=True),
        n_token_types=file.integer("type_vocab_size", default=0, least=0),
    )


def read_pooling(file: ModelFile) -> Pooling:
    """Return the mean, or a classifier's pooling."""
    tensors, head = without_prefixes(file.tensors, PREFIXES), f"{POOLER}.weight"
    activation = curve(file, "pooler_hidden_act", "gelu")
    size = file.integer("pooler_hidden_size", default=file.integer("hidden_size"))
    if f"{CLASSIFIER}.weight" not in tensors or head not in tensors:
        return Pooling()
    return Pooling("cls", dense=(Dense(size, True, activation), classifier(tensors)))


def span(file: ModelFile) -> int:
    """Return the number of embeddings of distances on each side."""
    longest, buckets = longest_distance(file), _number(file, "position_buckets")
    if buckets > 0 and not 2 <= buckets < 2 * (longest - 1):
        raise file.fail("position_buckets", f"-1, or from 2 to {2 * longest - 3},")
    return buckets if buckets > 0 else longest


def longest_distance(file: ModelFile) -> int:
    """Return the distance from which on all have one embedding."""
    longest = _number(file, "max_relative_positions")
    return longest if longest > 0 else file.integer("max_position_embeddings")


def _number(file: ModelFile, name: str) -> int:
    found = file.raw(name) if file.is_set(name) else -1
    if type(found) is not int:
        raise file.fail(name, "a number")
    return found


def embedding_of(distance: int, n: int, buckets: int, longest: int) -> int:
    """Return the number of the embedding of a query's position minus the key's.

    There are ``n`` on each side. Of buckets the first half has a distance each, the others grow
    with the logarithm up to ``longest``.
    """
    middle, place = buckets // 2, abs(distance)
    if buckets > 0 and place > middle:
        growth = math.log(place / middle) / math.log((longest - 1) / middle)
        place = math.ceil(growth * (middle - 1)) + middle
    return min(max((place if distance > 0 else -place) + n, 0), 2 * n - 1)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; the norm after a layer becomes the norm before the next one."""
    tensors.remove_prefixes(*PREFIXES)
    unused = [name for name in tensors.out if name.startswith(UNUSED_PREFIXES)]
    tensors.drop(*unused, "embeddings.position_ids")
    give_outside_layers(tensors, config)
    tensors.rename(POSITIONS, tensors.usual(Role.POSITION_EMBEDDING))


def hf_values(fields: Fields, tensors: Rearranged, config: ModelConfig) -> None:
    """Project the embeddings of distances, as the reference does for every text."""
    file = ModelFile(fields, tensors.out, HF)
    n, longest, source = span(file), longest_distance(file), tensors.out.get(EMBEDDINGS)
    if source is not None and source.shape != (2 * n, config.hidden_size):
        raise ModelFileError(
            f"{source.where}: tensor {EMBEDDINGS!r} has shape {list(source.shape)};"
            f" {[2 * n, config.hidden_size]} is needed"
        )
    buckets, shared = fields.raw("position_buckets") or -1, fields.flag("share_att_key", False)
    reach, scale = config.heads.distances, config.heads.score_scale
    columns = np.array([embedding_of(-d, n, buckets, longest) for d in range(-reach, reach + 1)])
    normed = "layer_norm" in fields.text("norm_rel_ebd", default="none").lower()
    norm = [f"{NORM}.weight", f"{NORM}.bias"] if normed else []

    def projected(factor: float) -> Project:
        def project(table: Floats, matrix: Floats, bias: Floats, *norm: Floats) -> Floats:
            rows: npt.NDArray[Any] = table
            if norm:
                rows = exact_layernorm(rows, norm[0], norm[1], config.rms_norm_eps)
            made = (exact_product(rows, matrix) + bias) * factor
            return np.asarray(made[columns].T.reshape(-1), np.float32)

        return project

    size = config.heads.n_heads * config.heads.head_dim * (2 * reach + 1)
    used: list[str] = []
    for number in range(config.n_layers):
        for name, role, factor in (
            ("key_proj", Role.ATTN_POSITION_KEYS, 1.0),
            ("query_proj", Role.ATTN_POSITION_QUERIES, scale),
        ):
            own = f"{LAYER.format(number)}attention.self.{name if shared else OWN[name]}"
            sources = [EMBEDDINGS, f"{own}.weight", f"{own}.bias", *norm]
            tensors.compute(tensors.usual(role, number), size, sources, projected(factor))
            used += [] if shared else sources[1:3]
    tensors.drop(EMBEDDINGS, f"{NORM}.weight", f"{NORM}.bias", *used)
    give_post_norm_layers(tensors, config, LAYER, OF_LAYER, "output.LayerNorm")


FAMILY = encoder_family("deberta-v2", program, hf_tensors, hf_values=hf_values)
