"""Opens a Hugging Face directory as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanewise.loading.architectures import (
    HF,
    TENSOR_NAMES,
    Family,
    SourceTensor,
    bind_tensors,
    check_config,
    hf_family,
)
from lanewise.loading.checkpoint import (
    Checkpoint,
    ModelConfig,
    ModelFileError,
    Role,
    round_to_f32,
)
from lanewise.loading.json_files import Fields, read_object
from lanewise.loading.packed_checkpoint import is_packed, open_packed
from lanewise.loading.quantization import find_quantization, read_scheme
from lanewise.loading.quantized_sources import unpack_sources
from lanewise.loading.rope import rope_factors, rope_settings
from lanewise.loading.safetensors import DTYPES, SafetensorsFile
from lanewise.loading.tokenizer_files import model_name, read_tokenizer_files

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
IGNORED_SUFFIX = ".rotary_emb.inv_freq"  # a constant that old checkpoints stored


def open_directory(path: Path) -> Checkpoint:
    """Open a Hugging Face directory; raises ModelFileError for anything that cannot be served."""
    if not (path / "config.json").is_file():
        raise ModelFileError(
            f"{path}: config.json is missing; a Hugging Face directory has config.json,"
            f" tokenizer.json and {WEIGHTS}{_hint(path)}"
        )
    fields = Fields(read_object(path / "config.json"), str(path / "config.json"))
    if is_packed(fields):
        return open_packed(path, fields)
    family = hf_family(fields.text("model_type"), fields.source)
    tokenizer = read_tokenizer_files(path, fields.integer("vocab_size"))
    files = open_weights(path)
    try:
        sources = {
            name: SourceTensor(
                where=str(file.path),
                shape=tensor.shape,
                type=DTYPES.get(tensor.dtype, tensor.dtype),
                data=file.file.view[tensor.start : tensor.start + tensor.n_bytes],
                release=file.file.releaser(tensor.start, tensor.n_bytes),
            )
            for file in files
            for name, tensor in file.tensors.items()
            if not name.endswith(IGNORED_SUFFIX)
        }
        config = read_config(fields, family, sources)
        quantization = find_quantization(fields, path)
        if quantization is not None:
            sources = unpack_sources(sources, read_scheme(quantization), config.n_layers)
        if config.tied_embeddings:  # some files hold the same bytes a second time
            sources.pop(TENSOR_NAMES[Role.OUTPUT][HF], None)
        tensors = bind_tensors(config, sources, HF, False, str(path))
    except BaseException:
        close_all(files)
        raise
    return Checkpoint(path, model_name(path), config, tensors, tokenizer, lambda: close_all(files))


def read_config(fields: Fields, family: Family, sources: Mapping[str, Any]) -> ModelConfig:
    """Return the model config that config.json describes."""
    if fields.text("hidden_act", default="silu") != "silu":
        raise fields.fail("hidden_act", "'silu'")
    hidden, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    default_head_dim = 128 if family.name == "qwen3" else hidden // n_heads or 1
    head_dim = fields.integer("head_dim", default=default_head_dim)
    n_layers = fields.integer("num_hidden_layers")
    if n_layers > len(sources):
        raise fields.fail("num_hidden_layers", f"at most the number of tensors, {len(sources)},")
    rope = rope_settings(fields)
    rope_theta = rope.number("rope_theta", default=10000.0)
    bias_name = TENSOR_NAMES[Role.ATTN_Q_BIAS][HF].format(0)
    config = ModelConfig(
        architecture=family.name,
        n_layers=n_layers,
        hidden_size=hidden,
        ffn_size=fields.integer("intermediate_size"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", default=n_heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        context_length=fields.integer("max_position_embeddings"),
        rms_norm_eps=round_to_f32(fields.number("rms_norm_eps")),
        rope_theta=round_to_f32(rope_theta),
        rope_factors=rope_factors(rope, rope_theta, head_dim),
        sliding_window=sliding_window(fields, family, n_layers),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=bias_name in sources if family.qkv_bias is None else family.qkv_bias,
        qk_norm=family.qk_norm,
    )
    return check_config(config, fields.source)


def sliding_window(fields: Fields, family: Family, n_layers: int) -> int | None:
    """Return the attention window that all layers share, or None for full attention."""
    if family.name == "llama":
        return None
    if family.name == "mistral":
        if "sliding_window" not in fields.values:
            return 4096  # the family's default; newer models say null
        return fields.integer("sliding_window", default=0, least=0) or None
    if not fields.flag("use_sliding_window", default=False):
        return None
    window = fields.integer("sliding_window", default=0, least=0) or None
    full_layers = fields.integer("max_window_layers", default=28, least=0)
    kinds = fields.values.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == n_layers:
        full_layers = sum(kind == "full_attention" for kind in kinds)
    if window is None or full_layers >= n_layers:
        return None
    if full_layers:
        raise fields.fail("max_window_layers", f"0, or {n_layers} (all layers alike)")
    return window


def open_weights(path: Path) -> list[SafetensorsFile]:
    """Open the one weights file, or every shard that the index names."""
    if (path / INDEX).is_file():
        return open_shards(path)
    if not (path / WEIGHTS).is_file():
        raise ModelFileError(f"{path}: neither {WEIGHTS} nor {INDEX} is there{_hint(path)}")
    return [SafetensorsFile(path / WEIGHTS)]


def open_shards(path: Path) -> list[SafetensorsFile]:
    """Open the shards of an index and check that each holds what the index says."""
    index = path / INDEX
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: weight_map is missing; tensor names to file names needed")
    files: dict[str, SafetensorsFile] = {}
    try:
        for tensor, name in weight_map.items():
            if not isinstance(name, str) or Path(name).name != name:
                raise ModelFileError(f"{index}: weight_map: {name!r} is not a plain file name")
            if name not in files:
                files[name] = SafetensorsFile(path / name)
            if tensor not in files[name].tensors:
                raise ModelFileError(f"{index}: {name} has no tensor {tensor!r}")
        owners: dict[str, str] = {}
        for name, file in files.items():
            for tensor in file.tensors:
                if owners.setdefault(tensor, name) != name:
                    raise ModelFileError(
                        f"{path}: tensor {tensor!r} is in both {owners[tensor]} and {name}"
                    )
    except BaseException:
        close_all(files.values())
        raise
    return list(files.values())


def close_all(files: Any) -> None:
    """Unmap all files."""
    for file in files:
        file.close()


def _hint(path: Path) -> str:
    for pattern, advice in (
        ("*.gguf", "; to serve a GGUF file, give its own path"),
        ("*.bin", "; weights in PyTorch's format must be converted to safetensors"),
        ("*.pth", "; weights in PyTorch's format must be converted to safetensors"),
    ):
        found = next(iter(sorted(path.glob(pattern))), None)
        if found is not None:
            return f" (found {found.name}{advice})"
    return ""
