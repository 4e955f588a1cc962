"""Opens a Hugging Face directory as a checkpoint."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import HF, TENSOR_NAMES
from lanewise.loading.base.program import ModelConfig, Pooling
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.checkpoints.mtp import with_mtp, with_mtp_if_there
from lanewise.loading.families.common import n_layers_of, with_both_ways
from lanewise.loading.families.family import Family
from lanewise.loading.families.table import hf_family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.files.weights_files import open_weights, read_sources
from lanewise.loading.pooling.heads import (
    SCORE,
    SCORES,
    settle_head,
    take_scores,
    with_embedding,
    with_pooling,
)
from lanewise.loading.pooling.judges import is_judge
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.harmless import refuse_unknown_config
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.native_program import check_program
from lanewise.loading.programs.reference import config_fields
from lanewise.loading.programs.text_part import text_fields, text_tensors
from lanewise.loading.quantized.quantization import (
    Scheme,
    Ternary,
    find_quantization,
    read_quantization,
)
from lanewise.loading.quantized.quantized_sources import made_plain
from lanewise.loading.towers.directory import add_hf_tower
from lanewise.loading.vocabulary.tokenizer_files import model_name, read_tokenizer_files

logger = logging.getLogger(__name__)


def open_hugging_face(
    path: Path,
    config: Fields,
    pooling: Pooling | None = None,
    mtp: bool | None = False,
    tower: bool = True,
) -> Checkpoint:
    """Open a directory whose config.json is ``config``.

    ``pooling`` replaces the output head of a generative model. With ``mtp`` the multi-token
    prediction head must be there and is read; with None it is read if it is there. Without
    ``tower`` a tower is left out. ModelFileError for anything that cannot be served.
    """
    family, fields = family_of(config)
    tokenizer = read_tokenizer_files(path, fields.integer("vocab_size"))
    quantization = find_quantization(config, path)
    files = open_weights(path)
    found = None
    try:
        whole = read_sources(files)
        sources = text_tensors(whole, str(path))
        if quantization is not None and not is_own(quantization, family):
            found = read_quantization(quantization)
            if found is not None:
                sources = made_plain(sources, found, n_layers_of(ModelFile(fields, sources, HF)))
        model, sources = read_program(family, fields, sources)
        if isinstance(found, Ternary):
            model = with_row_codes(model, fields.source)
        if mtp:
            model, sources = with_mtp(family, model, sources, HF, str(path))
        elif mtp is None and model.pooling is None and not _scores(config):
            model, sources = with_mtp_if_there(family, model, sources, HF, str(path))
        if model.pooling == Pooling() and SCORE in sources:
            model = replace(model, pooling=None)
        scores: dict[str, SourceTensor] = {}
        if model.pooling is None and _scores(config):
            model, sources, scores = take_scores(model, sources, str(path))
        model, sources = with_pooling(model, sources, pooling, HF)
        named = Rearranged(sources, HF)
        family.hf_tensors(named, model)
        family.hf_values(fields, named, model)
        tensors = bind_tensors(
            model, {**named.out, **scores}, HF, family.hf_interleaved_rope, str(path)
        )
        name = model_name(path)
        checkpoint = Checkpoint(path, name, model, tensors, tokenizer, lambda: close_all(files))
        if tower:
            _add_tower(checkpoint, config, whole)
    except BaseException:
        close_all(files)
        raise
    is_packed = isinstance(found, Scheme) and not found.is_mixed
    checkpoint.is_widened = found is not None and not is_packed and not isinstance(found, Ternary)
    return checkpoint


def _add_tower(checkpoint: Checkpoint, config: Fields, sources: dict[str, SourceTensor]) -> None:
    """Add the tower; the model reads texts only where that cannot be computed as it should be."""
    text_alone = checkpoint.config
    try:
        add_hf_tower(checkpoint, config, sources)
    except ModelFileError as error:
        checkpoint.config, checkpoint.tower, checkpoint.vision = text_alone, None, None
        logger.warning("%s: pictures are refused, as what reads them cannot be read", error)


def _scores(config: Fields) -> bool:
    """Whether a model was trained to score texts and has no other head for that."""
    said = config.raw("architectures")
    names = said if isinstance(said, list) else []
    scores = any(isinstance(name, str) and name.endswith(SCORES) for name in names)
    return scores and not is_judge(config.values)


def is_own(quantization: Fields, family: Family) -> bool:
    """Return whether the family itself reads tensors with this quantization."""
    return quantization.text("quant_method", default="none") in family.own_quantizations


def family_of(config: Fields) -> tuple[Family, Fields]:
    """Return the family of a config.json, and the fields of its language model."""
    fields = text_fields(config)
    model_type = fields.text("model_type")
    family = hf_family(model_type, fields.source)
    return family, Fields(fields.values, fields.source, config_fields(family.name, model_type))


def with_row_codes(model: ModelConfig, source: str) -> ModelConfig:
    """Return the program whose matrices read codes with one scale for each token."""
    layers = tuple(replace(layer, row_codes=True) for layer in model.layers)
    return check_program(replace(model, layers=layers), source)


def read_program(
    family: Family, fields: Fields, sources: dict[str, SourceTensor]
) -> tuple[ModelConfig, dict[str, SourceTensor]]:
    """Return the program that a config and its tensors describe, and the tensors it needs."""
    has_embedding = TENSOR_NAMES[Role.TOKEN_EMBEDDING][HF] in sources
    sources = with_embedding(sources, HF)
    model = family.program(ModelFile(fields, sources, HF))
    if not fields.flag("is_causal", default=True) and model.pooling is None:
        model = with_both_ways(model, fields, "is_causal")
        sources = {k: v for k, v in sources.items() if k != TENSOR_NAMES[Role.OUTPUT][HF]}
    check_program(model, fields.source)
    refuse_unknown_config(fields, family.harmless)
    if not has_embedding:
        return replace(model, tied_embeddings=True), sources
    return settle_head(model, sources)
