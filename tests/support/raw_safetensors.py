"""Safetensors files with dtypes that numpy has no name for: (dtype, its bytes as an array)."""

import json
from pathlib import Path

import numpy as np


def write_raw(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Write a file; ``tensors`` are dtype and values of the same number of bytes by name."""
    header, parts, start = {}, [], 0
    for name, (dtype, values) in tensors.items():
        data = np.ascontiguousarray(values).tobytes()
        end = start + len(data)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, end]}
        parts.append(data)
        start = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
