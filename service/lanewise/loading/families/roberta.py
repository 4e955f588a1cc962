"""RoBERTa: BERT whose positions start after the padding token's id."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families import bert
from lanewise.loading.families.encoders import classifier_pooling, encoder_family
from lanewise.loading.files.rearranging import Rearranged, without_prefixes
from lanewise.loading.programs.model_file import ModelFile

HEADS = ("classifier.dense", "classifier.out_proj")
PADDING = 1


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    return roberta_model(file, "roberta")


def roberta_model(file: ModelFile, name: str) -> ModelConfig:
    """Return the program."""
    tensors = without_prefixes(file.tensors, bert.PREFIXES)
    pooling = classifier_pooling(tensors, file.integer("hidden_size"), HEADS[1])
    padding = file.integer("pad_token_id", default=PADDING, least=0)
    table, rows = tensors.get(bert.POSITIONS), file.integer("max_position_embeddings")
    if table is not None and (len(table.shape) != 2 or table.shape[0] != rows):
        raise ModelFileError(
            f"{table.where}: tensor {bert.POSITIONS!r} has shape {list(table.shape)};"
            f" max_position_embeddings, {rows}, is how many rows are needed"
        )
    return bert.bert_model(file, name, pooling, first_position=padding + 1)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename as for BERT, and drop the rows of positions that no token has."""
    bert.hf_tensors(tensors, config, HEADS)
    name = tensors.usual(Role.POSITION_EMBEDDING)
    rows = tensors.out[name].shape[0] if name in tensors.out else 0
    if rows > config.context_length:
        tensors.drop_rows(name, rows - config.context_length)


FAMILY = encoder_family("roberta", program, hf_tensors)
