"""Opens a GGUF file as a checkpoint."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

from lanewise.loading.architectures import (
    GGUF,
    SourceTensor,
    bind_tensors,
    check_config,
    gguf_family,
)
from lanewise.loading.checkpoint import (
    Checkpoint,
    ModelConfig,
    ModelFileError,
    TensorType,
    TokenizerFiles,
    round_to_f32,
)
from lanewise.loading.gguf import GgufFile
from lanewise.loading.json_files import Fields
from lanewise.loading.rope import checked_factors, uniform_factors

ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; raises ModelFileError for anything that cannot be served."""
    gguf = GgufFile(path)
    try:
        fields = Fields(gguf.metadata, str(path))
        family = gguf_family(fields.text("general.architecture"), str(path))
        if fields.integer("split.count", default=1) > 1:
            raise fields.fail("split.count", "a model in one file (merge its parts first)")
        config = read_config(gguf, fields, family.gguf or "", family.qkv_bias, family.qk_norm)
        sources = {
            name: SourceTensor(
                where=str(path),
                shape=tuple(reversed(tensor.shape)),
                type=tensor.type,
                data=gguf.file.view[tensor.start : tensor.start + tensor.n_bytes],
                release=gguf.file.releaser(tensor.start, tensor.n_bytes),
            )
            for name, tensor in gguf.tensors.items()
            if name != ROPE_FACTORS
        }
        tensors = bind_tensors(config, sources, GGUF, family.gguf_interleaved_rope, str(path))
    except BaseException:
        gguf.close()
        raise
    tokenizer = TokenizerFiles(path, config.vocab_size, gguf=gguf.metadata)
    return Checkpoint(path, path.stem, config, tensors, tokenizer, gguf.close)


def read_config(
    gguf: GgufFile, fields: Fields, arch: str, qkv_bias: bool | None, qk_norm: bool
) -> ModelConfig:
    """Return the model config that the metadata and the tensors describe."""
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"{gguf.path}: missing tensor 'token_embd.weight' with two dimensions")
    if fields.integer(f"{arch}.expert_count", default=0, least=0):
        raise fields.fail(f"{arch}.expert_count", "0 (mixtures of experts are not supported)")
    hidden = fields.integer(f"{arch}.embedding_length")
    n_heads = uniform(fields, f"{arch}.attention.head_count")
    head_dim = fields.integer(f"{arch}.attention.key_length", default=hidden // n_heads or 1)
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        if fields.integer(key, default=head_dim) != head_dim:
            raise fields.fail(key, f"the head dimension, {head_dim},")
    rope_theta = fields.number(f"{arch}.rope.freq_base", default=10000.0)
    sliding_window = fields.integer(f"{arch}.attention.sliding_window", default=0, least=0)
    config = ModelConfig(
        architecture=arch,
        n_layers=fields.integer(f"{arch}.block_count"),
        hidden_size=hidden,
        ffn_size=uniform(fields, f"{arch}.feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=uniform(fields, f"{arch}.attention.head_count_kv", default=n_heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[1],
        context_length=fields.integer(f"{arch}.context_length"),
        rms_norm_eps=round_to_f32(fields.number(f"{arch}.attention.layer_norm_rms_epsilon")),
        rope_theta=round_to_f32(rope_theta),
        rope_factors=read_rope_factors(gguf, fields, arch, head_dim),
        sliding_window=sliding_window or None,
        tied_embeddings="output.weight" not in gguf.tensors,
        qkv_bias="blk.0.attn_q.bias" in gguf.tensors if qkv_bias is None else qkv_bias,
        qk_norm=qk_norm,
    )
    if config.n_layers > len(gguf.tensors):
        raise fields.fail(
            f"{arch}.block_count", f"at most the number of tensors, {len(gguf.tensors)},"
        )
    return check_config(config, str(gguf.path))


def uniform(fields: Fields, key: str, default: int | None = None) -> int:
    """Return a number that some files give once per layer, if all layers have the same."""
    values = fields.values.get(key)
    if not isinstance(values, list):
        return fields.integer(key, default)
    if len(set(values)) != 1:
        raise fields.fail(key, "the same number for every layer")
    return Fields({key: values[0]}, fields.source).integer(key)


def read_rope_factors(
    gguf: GgufFile, fields: Fields, arch: str, head_dim: int
) -> tuple[float, ...] | None:
    """Return the divisors of the RoPE frequencies, stored as a tensor or as one number."""
    scaling = fields.text(f"{arch}.rope.scaling.type", default="none")
    linear = fields.number(f"{arch}.rope.scale_linear", default=1.0)
    if scaling == "linear":
        linear = fields.number(f"{arch}.rope.scaling.factor")
    elif scaling != "none":
        raise fields.fail(f"{arch}.rope.scaling.type", "none or linear")
    tensor = gguf.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return uniform_factors(linear, head_dim)
    if tensor.type != TensorType.F32 or linear != 1.0:
        raise ModelFileError(
            f"{gguf.path}: tensor {ROPE_FACTORS!r} has type {tensor.type.name} and linear scaling"
            f" is {linear}; F32 and 1 are needed"
        )
    data = gguf.file.view[tensor.start : tensor.start + tensor.n_bytes]
    factors = struct.unpack(f"<{prod(tensor.shape)}f", data)
    return checked_factors(factors, head_dim, f"{gguf.path}: {ROPE_FACTORS}")
