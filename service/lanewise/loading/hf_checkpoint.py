"""Opens a Hugging Face directory as a checkpoint."""

from __future__ import annotations

from pathlib import Path

from lanewise.loading.binding import bind_tensors
from lanewise.loading.checkpoint import Checkpoint, Role
from lanewise.loading.checks import check_program
from lanewise.loading.families.common import hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.table import hf_family
from lanewise.loading.json_files import Fields
from lanewise.loading.names import HF, TENSOR_NAMES
from lanewise.loading.quantization import find_quantization, read_scheme
from lanewise.loading.quantized_sources import unpack_sources
from lanewise.loading.tokenizer_files import model_name, read_tokenizer_files
from lanewise.loading.weights_files import close_all, open_weights, read_sources


def open_hugging_face(path: Path, fields: Fields) -> Checkpoint:
    """Open a directory, ``fields`` being its config.json.

    Raises ModelFileError for anything that cannot be served.
    """
    family = hf_family(fields.text("model_type"), fields.source)
    tokenizer = read_tokenizer_files(path, fields.integer("vocab_size"))
    files = open_weights(path)
    try:
        sources = read_sources(files)
        quantization = find_quantization(fields, path)
        if quantization is not None and not is_own(quantization, family):
            n_layers = hf_n_layers(fields, sources)
            sources = unpack_sources(sources, read_scheme(quantization), n_layers)
        config = check_program(family.from_hf(fields, sources), fields.source)
        if config.tied_embeddings:  # some files hold the same bytes a second time
            sources.pop(TENSOR_NAMES[Role.OUTPUT][HF], None)
        named = family.hf_tensors(sources, config)
        tensors = bind_tensors(config, named, HF, family.hf_interleaved_rope, str(path))
    except BaseException:
        close_all(files)
        raise
    return Checkpoint(path, model_name(path), config, tensors, tokenizer, lambda: close_all(files))


def is_own(quantization: Fields, family: Family) -> bool:
    """Return whether the family reads tensors that are quantized so itself."""
    return quantization.text("quant_method", default="none") in family.own_quantizations
