"""What writers of GGUF files share: values by their type, rows in pairs, the end, parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Alternate the halves of each head, as the public converter does for the llama family."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if key == "general.alignment":
        writer.add_custom_alignment(value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def write_out(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def split_gguf(whole: Path, count: int) -> list[Path]:
    """Put a GGUF file's tensors into several in its place; the first has the metadata."""
    reader = gguf.GGUFReader(whole)
    arch = reader.fields["general.architecture"].contents()
    paths = []
    for number in range(count):
        paths.append(whole.with_name(f"{whole.stem}-{number + 1:05}-of-{count:05}.gguf"))
        writer = gguf.GGUFWriter(paths[-1], arch)
        for key, field in reader.fields.items():
            is_value = field.types and not key.startswith("GGUF.")
            if number == 0 and is_value and key != "general.architecture":
                writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        write_out(writer)
    whole.unlink()
    return paths
