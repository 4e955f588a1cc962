"""What the configs and metadata of most families have in common, as in Llama's."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.checks import check_heads
from lanewise.loading.formats import TensorType, round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, HF, TENSOR_NAMES
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.loading.rope import checked_factors, read_rope, uniform_factors
from lanewise.loading.sources import Sources

ROPE_FACTORS = "rope_freqs.weight"  # a tensor of GGUF files that is none of the model's


def hf_attention(
    fields: Fields, head_dim: int | None = None, qkv_bias: bool = False, qk_norm: str = "none"
) -> Attention:
    """Return attention as config.json describes it; ``head_dim`` is the family's if none is given.

    None means that heads share the hidden size.
    """
    n_heads = fields.integer("num_attention_heads")
    default = head_dim or fields.integer("hidden_size") // n_heads or 1
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", default=n_heads),
        head_dim=fields.integer("head_dim", default=default),
        rope=0,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )
    return check_heads(attention, fields.source)


def hf_gated(fields: Fields) -> Gated:
    """Return a gated layer as config.json describes it."""
    if fields.text("hidden_act", default="silu") != "silu":
        raise fields.fail("hidden_act", "'silu'")
    return Gated(fields.integer("intermediate_size"))


def hf_n_layers(fields: Fields, sources: Sources) -> int:
    """Return the number of layers, which no file has more of than tensors."""
    n_layers = fields.integer("num_hidden_layers")
    if n_layers > len(sources):
        raise fields.fail("num_hidden_layers", f"at most the number of tensors, {len(sources)},")
    return n_layers


def hf_model(fields: Fields, name: str, layers: Sequence[Layer]) -> ModelConfig:
    """Return the whole of a model with one set of angles."""
    return ModelConfig(
        architecture=name,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=fields.integer("max_position_embeddings"),
        rms_norm_eps=round_to_f32(fields.number("rms_norm_eps")),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        ropes=(read_rope(fields, layers[0].attention.head_dim),),
        layers=tuple(layers),
    )


def has_qkv_bias(sources: Sources, column: int) -> bool:
    """Return whether the first layer has a bias of Q, which says that Q, K and V have."""
    return TENSOR_NAMES[Role.ATTN_Q_BIAS][column].format(0) in sources


def hf_has_qkv_bias(sources: Sources) -> bool:
    """Return whether a Hugging Face directory has biases of Q, K and V."""
    return has_qkv_bias(sources, HF)


def gguf_has_qkv_bias(sources: Sources) -> bool:
    """Return whether a GGUF file has biases of Q, K and V."""
    return has_qkv_bias(sources, GGUF)


def gguf_attention(fields: Fields, qkv_bias: bool = False, qk_norm: str = "none") -> Attention:
    """Return attention as GGUF metadata describes it."""
    arch = fields.text("general.architecture")
    n_heads = gguf_uniform(fields, f"{arch}.attention.head_count")
    hidden = fields.integer(f"{arch}.embedding_length")
    head_dim = fields.integer(f"{arch}.attention.key_length", default=hidden // n_heads or 1)
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        if fields.integer(key, default=head_dim) != head_dim:
            raise fields.fail(key, f"the head dimension, {head_dim},")
    window = fields.integer(f"{arch}.attention.sliding_window", default=0, least=0)
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=gguf_uniform(fields, f"{arch}.attention.head_count_kv", default=n_heads),
        head_dim=head_dim,
        rope=0,
        window=window or None,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )
    return check_heads(attention, fields.source)


def gguf_gated(fields: Fields) -> Gated:
    """Return a gated layer as GGUF metadata describes it."""
    arch = fields.text("general.architecture")
    if fields.integer(f"{arch}.expert_count", default=0, least=0):
        raise fields.fail(f"{arch}.expert_count", "0 (mixtures of experts are not supported)")
    return Gated(gguf_uniform(fields, f"{arch}.feed_forward_length"))


def gguf_n_layers(fields: Fields, sources: Sources) -> int:
    """Return the number of layers, which no file has more of than tensors."""
    key = f"{fields.text('general.architecture')}.block_count"
    n_layers = fields.integer(key)
    if n_layers > len(sources):
        raise fields.fail(key, f"at most the number of tensors, {len(sources)},")
    return n_layers


def gguf_model(fields: Fields, sources: Sources, name: str, layers: Sequence[Layer]) -> ModelConfig:
    """Return the whole of a model with one set of angles."""
    arch = fields.text("general.architecture")
    embedding = sources.get(TENSOR_NAMES[Role.TOKEN_EMBEDDING][GGUF])
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(
            f"{fields.source}: missing tensor 'token_embd.weight' with two dimensions"
        )
    head_dim = layers[0].attention.head_dim
    theta = round_to_f32(fields.number(f"{arch}.rope.freq_base", default=10000.0))
    return ModelConfig(
        architecture=name,
        hidden_size=fields.integer(f"{arch}.embedding_length"),
        vocab_size=embedding.shape[0],
        context_length=fields.integer(f"{arch}.context_length"),
        rms_norm_eps=round_to_f32(fields.number(f"{arch}.attention.layer_norm_rms_epsilon")),
        tied_embeddings=TENSOR_NAMES[Role.OUTPUT][GGUF] not in sources,
        ropes=(Rope(theta, head_dim, gguf_rope_factors(fields, sources, arch, head_dim)),),
        layers=tuple(layers),
    )


def gguf_uniform(fields: Fields, key: str, default: int | None = None) -> int:
    """Return a number that some files give once per layer, if all layers have the same."""
    values = fields.values.get(key)
    if not isinstance(values, list):
        return fields.integer(key, default)
    if len(set(values)) != 1:
        raise fields.fail(key, "the same number for every layer")
    return Fields({key: values[0]}, fields.source).integer(key)


def gguf_rope_factors(
    fields: Fields, sources: Sources, arch: str, head_dim: int
) -> tuple[float, ...] | None:
    """Return the divisors of the RoPE frequencies, stored as a tensor or as one number."""
    scaling = fields.text(f"{arch}.rope.scaling.type", default="none")
    linear = fields.number(f"{arch}.rope.scale_linear", default=1.0)
    if scaling == "linear":
        linear = fields.number(f"{arch}.rope.scaling.factor")
    elif scaling != "none":
        raise fields.fail(f"{arch}.rope.scaling.type", "none or linear")
    tensor = sources.get(ROPE_FACTORS)
    if tensor is None:
        return uniform_factors(linear, head_dim)
    if tensor.type != TensorType.F32 or linear != 1.0:
        shown = tensor.type.name if isinstance(tensor.type, TensorType) else tensor.type
        raise ModelFileError(
            f"{tensor.where}: tensor {ROPE_FACTORS!r} has type {shown} and linear scaling"
            f" is {linear}; F32 and 1 are needed"
        )
    factors = struct.unpack(f"<{prod(tensor.shape)}f", tensor.view())
    return checked_factors(factors, head_dim, f"{tensor.where}: {ROPE_FACTORS}")
