"""Metadata of GGUF files as published: each describes the program of its model."""

from __future__ import annotations

import pytest

from data_files import data
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import GGUF
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.families.table import gguf_family
from lanewise.loading.files.gguf import GgufFile
from lanewise.loading.pooling.heads import with_embedding
from lanewise.loading.programs.harmless import refuse_unknown_metadata
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.native_program import check_program

# Layers, hidden size, heads of queries and of keys, FFN, theta and context.
SIZES = {
    "deepseek-coder": (32, 4096, 32, 32, 11008, 100000.0, 16384),
    "gpt-2": (12, 768, 12, 12, 3072, None, 1024),
    "llama-spm": (32, 4096, 32, 32, 11008, 10000.0, 4096),
    "phi-3": (32, 3072, 32, 32, 8192, 10000.0, 4096),
    "starcoder": (30, 3072, 24, 2, 12288, 999999.4375, 16384),
}


@pytest.mark.parametrize("name", SIZES)
def test_metadata_describe_their_model(name: str) -> None:
    file = GgufFile(data(f"tokenizers/ggml-vocab-{name}.gguf"))
    fields = Fields(dict(file.metadata), name)
    n_layers, hidden, n_heads, n_kv_heads, size, theta, context = SIZES[name]
    vocab = len(file.metadata["tokenizer.ggml.tokens"])
    file.close()

    def tensor(*shape: int) -> SourceTensor:
        return SourceTensor(name, shape, TensorType.F32, memoryview(b""), lambda: None)

    sources = {f"blk.{number}.x": tensor(1) for number in range(n_layers)}
    sources |= {"token_embd.weight": tensor(vocab, hidden), "output.weight": tensor(vocab, hidden)}
    arch = fields.text("general.architecture")
    described = ModelFile(fields, with_embedding(sources, GGUF), GGUF)
    config = check_program(gguf_family(arch, name).program(described), name)
    refuse_unknown_metadata(fields, arch)
    heads = config.heads
    assert (config.n_layers, config.hidden_size, heads.n_heads, heads.n_kv_heads) == (
        *(n_layers, hidden),
        *(n_heads, n_kv_heads),
    )
    assert (config.ffn_size(0), config.context_length, config.vocab_size) == (size, context, vocab)
    assert [rope.theta for rope in config.ropes] == ([] if theta is None else [theta])
    if name == "deepseek-coder":  # linear scaling by 4
        assert set(config.ropes[0].factors or ()) == {4.0}
