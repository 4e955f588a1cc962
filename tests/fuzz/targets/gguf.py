"""GGUF files: any header, with ones for weights."""

import struct
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.model_paths import PADDING, open_model, scratch, write_padded


def one_input(data: bytes) -> None:
    """The first byte says how many bytes of weights follow the others."""
    path = scratch() / "m.gguf"
    write_padded(path, data[1:], PADDING[data[0] % len(PADDING)] if data else 0)
    open_model(path)


def header_of(path: Path) -> bytes:
    """A file without its weights."""
    from lanewise.loading.files.gguf import GgufFile

    file = GgufFile(path)
    start = min(tensor.start for tensor in file.tensors.values())
    content = bytes(file.file.view[:start])
    file.close()
    return content


def seeds(folder: Path) -> Iterator[bytes]:
    """Headers of tiny models of every family."""
    import gguf

    from tiny_models import FAMILIES, tiny_model, write_gguf

    for family in FAMILIES:
        model = tiny_model(family)
        kind = gguf.GGMLQuantizationType.F16 if family == "llama2" else None
        options = () if kind is None else (kind,)
        content = header_of(write_gguf(model, folder / f"{family}.gguf", *options))
        yield b"\x02" + content
    yield b"\x01GGUF" + struct.pack("<IQQ", 3, 0, 0)


def words() -> Iterator[bytes]:
    """What a mutation may put in."""
    for key in ("general.alignment", "general.architecture", "llama.block_count", "split.count"):
        yield struct.pack("<Q", len(key)) + key.encode()
    for number in (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1):
        yield struct.pack("<Q", number)
    yield from (struct.pack("<I", kind) for kind in range(13))
