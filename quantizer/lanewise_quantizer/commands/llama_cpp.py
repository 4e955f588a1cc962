"""What llama.cpp's nearest type makes of the same source, where its Python package is installed.

The package llama-cpp-python (https://llama-cpp-python.readthedocs.io/en/latest/api-reference/)
quantizes in a process of its own, so that whatever ends it leaves the result alone.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lanewise.loading.base.checkpoint import Role, Tensor
from lanewise.loading.base.names import is_vector

PACKAGE = "llama_cpp"
MAX_S = 1800.0
BLOCK = 256  # what rows are a multiple of that most of its types can have


@dataclass(frozen=True)
class Type:
    """One of the types that llama-quantize knows."""

    name: str
    number: int  # of llama_ftype
    bits: float  # per weight of most matrices
    small_blocks: bool = False  # rows of any multiple of 32 can have it


# From few bits to many. In other rows than those of 256 the rest becomes one of the small blocks.
TYPES = (
    Type("Q2_K", 10, 2.96),
    Type("Q3_K_S", 11, 3.44),
    Type("Q3_K_M", 12, 3.91),
    Type("IQ4_XS", 30, 4.3),
    Type("IQ4_NL", 25, 4.5, small_blocks=True),
    Type("Q4_K_M", 15, 4.85),
    Type("Q4_1", 3, 5.0, small_blocks=True),
    Type("Q5_0", 8, 5.5, small_blocks=True),
    Type("Q5_K_M", 17, 5.7),
    Type("Q5_1", 9, 6.0, small_blocks=True),
    Type("Q6_K", 18, 6.56),
    Type("Q8_0", 7, 8.5, small_blocks=True),
)


def is_installed() -> bool:
    """Return whether the package can be imported, without doing so."""
    return importlib.util.find_spec(PACKAGE) is not None


def nearest(tensors: Iterable[Tensor]) -> Type:
    """Return the type that would give a model's matrices about the bits that they have."""
    head = others = n_bytes = 0
    matrices = [tensor for tensor in tensors if not is_vector(tensor.role)]
    has_output = any(tensor.role is Role.OUTPUT for tensor in matrices)
    last = Role.OUTPUT if has_output else Role.TOKEN_EMBEDDING  # which has six bits or eight
    wide = all(tensor.cols % BLOCK == 0 for tensor in matrices)
    for tensor in matrices:
        size = tensor.rows * tensor.cols
        n_bytes += tensor.n_bytes
        head, others = (head + size, others) if tensor.role is last else (head, others + size)

    def distance(kind: Type) -> float:
        of_head = max(kind.bits, 6.56 if wide else 8.5)
        return abs(of_head * head + kind.bits * others - 8 * n_bytes)

    return min((kind for kind in TYPES if wide or kind.small_blocks), key=distance)


def quantize(source: Path, output: Path, kind: Type, threads: int) -> bool:
    """Have llama.cpp write a GGUF file from another one; returns whether it did."""
    arguments = [str(source), str(output), str(kind.number), str(threads)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and output.is_file()


def main(source: str, output: str, number: str, threads: str) -> int:
    """Quantize with the package; returns 0 if it did."""
    package = importlib.import_module(PACKAGE)
    parameters = package.llama_model_quantize_default_params()
    parameters.nthread = int(threads)
    parameters.ftype = int(number)
    parameters.allow_requantize = True
    done = package.llama_model_quantize(source.encode(), output.encode(), ctypes.byref(parameters))
    return int(done)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
