"""The weights files of a Hugging Face directory: one file, or the shards of an index."""

from __future__ import annotations

from pathlib import Path

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import read_object
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.files.safetensors import DTYPES, SafetensorsFile

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
IGNORED_SUFFIX = ".rotary_emb.inv_freq"  # a constant that old checkpoints stored


def read_sources(files: list[SafetensorsFile]) -> dict[str, SourceTensor]:
    """Return the tensors of all files by name."""
    return {
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


def open_weights(path: Path) -> list[SafetensorsFile]:
    """Open the single weights file, or every shard that the index names."""
    if (path / INDEX).is_file():
        return open_shards(path)
    if not (path / WEIGHTS).is_file():
        raise ModelFileError(f"{path}: neither {WEIGHTS} nor {INDEX} is there{other_weights(path)}")
    return [SafetensorsFile(path / WEIGHTS)]


def open_shards(path: Path) -> list[SafetensorsFile]:
    """Open an index's shards and check that each has the tensors that the index says."""
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


def other_weights(path: Path) -> str:
    """Return a hint on weights in other formats that a directory has, with advice."""
    for pattern, advice in (
        ("adapter_config.json", ": this is a LoRA adapter; give its base model, and it beside"),
        ("*.gguf", "; to serve a GGUF file, give its own path"),
        ("*.bin", "; weights in PyTorch's format must be converted to safetensors"),
        ("*.pth", "; weights in PyTorch's format must be converted to safetensors"),
    ):
        found = next(iter(sorted(path.glob(pattern))), None)
        if found is not None:
            return f" (found {found.name}{advice})"
    return ""
