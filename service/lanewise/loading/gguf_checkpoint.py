"""Opens a GGUF file as a checkpoint."""

from __future__ import annotations

from pathlib import Path

from lanewise.loading.binding import bind_tensors
from lanewise.loading.checkpoint import Checkpoint, TokenizerFiles
from lanewise.loading.checks import check_program
from lanewise.loading.families.gguf import ROPE_TENSORS
from lanewise.loading.families.table import gguf_family
from lanewise.loading.gguf import GgufFile
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.sources import SourceTensor


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; raises ModelFileError for anything that cannot be served."""
    gguf = GgufFile(path)
    try:
        fields = Fields(gguf.metadata, str(path))
        family = gguf_family(fields.text("general.architecture"), str(path))
        if fields.integer("split.count", default=1) > 1:
            raise fields.fail("split.count", "a model in one file (merge its parts first)")
        sources = read_sources(gguf)
        assert family.from_gguf is not None
        config = check_program(family.from_gguf(fields, sources), str(path))
        for name in ROPE_TENSORS:
            sources.pop(name, None)
        named = family.gguf_tensors(sources, config)
        tensors = bind_tensors(config, named, GGUF, family.gguf_interleaved_rope, str(path))
    except BaseException:
        gguf.close()
        raise
    tokenizer = TokenizerFiles(path, config.vocab_size, gguf=gguf.metadata)
    return Checkpoint(path, path.stem, config, tensors, tokenizer, gguf.close)


def read_sources(gguf: GgufFile) -> dict[str, SourceTensor]:
    """Return the tensors of a file by name."""
    return {
        name: SourceTensor(
            where=str(gguf.path),
            shape=tuple(reversed(tensor.shape)),
            type=tensor.type,
            data=gguf.file.view[tensor.start : tensor.start + tensor.n_bytes],
            release=gguf.file.releaser(tensor.start, tensor.n_bytes),
        )
        for name, tensor in gguf.tensors.items()
    }
