"""Towers of published sizes with random weights: mmproj files, and small texts to stand beside.

``python -m loadtests.tower_files FOLDER [name ...]`` writes ``NAME-text.gguf`` and
``mmproj-NAME-f16.gguf``, ``mmproj-NAME-q8_0.gguf`` for each name of ``SHAPES``. With ``--layers``
the text has as many, of usual sizes, and is ``NAME-text-LAYERS.gguf``.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

VOCABULARY = 512  # rows of the text's table
TEMPLATE = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{{ p['text'] if p['type'] == 'text' else 'IMAGE' }}{% endfor %}"
    "{% endif %}{% endfor %}"
)
F16, Q8_0 = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0


@dataclass(frozen=True)
class Shape:
    """Sizes of a tower, and the picture that it is measured with."""

    projector: str  # clip.projector_type
    width: int
    layers: int
    heads: int
    ffn: int
    patch: int
    merge: int
    text: int  # values of a row
    picture: tuple[int, int]  # height, width in pixels
    image_size: int
    token: str  # which the text has for a picture
    is_gated: bool = False
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def patches(self) -> int:
        """How many patches the picture has."""
        return self.picture[0] * self.picture[1] // self.patch**2

    @property
    def linear_macs(self) -> int:
        """Products of a picture with the matrices of layers."""
        ffn = (3 if self.is_gated else 2) * self.width * self.ffn
        return self.patches * self.layers * (4 * self.width**2 + ffn)

    @property
    def attention_macs(self) -> int:
        """Products of queries with keys, and of weights with values."""
        return 2 * self.patches**2 * self.width * self.layers


QWEN = {"spatial_merge_size": 2}
SHAPES = {
    "smolvlm": Shape("idefics3", 768, 12, 12, 3072, 16, 4, 576, (512, 512), 512, "<image>"),
    "qwen3.5-0.8b": Shape(
        "qwen3vl_merger",
        768,
        12,
        12,
        3072,
        16,
        2,
        1024,
        (768, 1024),
        768,
        "<|image_pad|>",
        keys=QWEN,
    ),
    "qwen3.5-4b": Shape(
        "qwen3vl_merger",
        1024,
        24,
        16,
        4096,
        16,
        2,
        2560,
        (768, 1024),
        768,
        "<|image_pad|>",
        keys=QWEN,
    ),
    "gemma4-e4b": Shape(
        "gemma4v", 768, 16, 12, 3072, 16, 3, 2560, (672, 960), 224, "<|image|>", is_gated=True
    ),
    "gemma3": Shape(
        "gemma3", 1152, 27, 16, 4304, 14, 4, 2560, (896, 896), 896, "<image_soft_token>"
    ),
}


class Writer:
    """Writes tensors of random values; matrices in one type where their rows allow it."""

    def __init__(
        self, path: Path, arch: str, matrices: gguf.GGMLQuantizationType, seed: int
    ) -> None:
        self.out = gguf.GGUFWriter(path, arch)
        self._matrices = matrices
        self._rng = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        """Write a matrix whose products keep the size of what they read, times ``gain``."""
        values = self._rng.standard_normal((rows, cols), np.float32) * (gain / np.sqrt(cols))
        kind = self._matrices if cols % 32 == 0 else F16
        self.out.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    def floats(self, name: str, *shape: int, std: float = 0.02, mean: float = 0.0) -> None:
        """Write values as they are."""
        values = mean + std * self._rng.standard_normal(shape, np.float32)
        self.out.add_tensor(name, values.astype(np.float32))

    def half(self, name: str, *shape: int, std: float) -> None:
        """Write values in f16."""
        values = (std * self._rng.standard_normal(shape, np.float32)).astype(np.float16)
        self.out.add_tensor(name, values)

    def keys(self, values: dict[str, Any]) -> None:
        """Write metadata."""
        for key, value in values.items():
            add = {bool: self.out.add_bool, int: self.out.add_uint32, float: self.out.add_float32}
            if type(value) in add:
                add[type(value)](key, value)
            elif isinstance(value, str):
                self.out.add_string(key, value)
            else:
                self.out.add_array(key, value)

    def close(self) -> None:
        """Write the file."""
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def write_mmproj(shape: Shape, path: Path, matrices: gguf.GGMLQuantizationType) -> Path:
    """Write the tower of a shape; files of different types hold the same values."""
    writer = Writer(path, "clip", matrices, seed=1)
    is_qwen, is_gemma4 = shape.projector == "qwen3vl_merger", shape.projector == "gemma4v"
    vision = {
        "image_size": shape.image_size,
        "patch_size": shape.patch,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn,
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        "attention.layer_norm_epsilon": 1e-6,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "projection_dim": shape.text,
        **({} if is_qwen else {"projector.scale_factor": shape.merge}),
        **({"is_deepstack_layers": [False] * shape.layers} if is_qwen else {}),
        **({"preproc_image_size": 4 * shape.image_size} if shape.projector == "idefics3" else {}),
        **shape.keys,
    }
    writer.keys({f"clip.vision.{key}": value for key, value in vision.items()})
    writer.keys(
        {
            "general.type": "mmproj",
            "clip.has_vision_encoder": True,
            "clip.projector_type": shape.projector,
            "clip.use_gelu": True,
        }
    )
    writer.half("v.patch_embd.weight", shape.width, 3, shape.patch, shape.patch, std=0.03)
    if is_qwen:
        writer.half("v.patch_embd.weight.1", shape.width, 3, shape.patch, shape.patch, std=0.03)
    if not is_gemma4:
        writer.floats("v.patch_embd.bias", shape.width)
    side = shape.image_size // shape.patch
    if is_gemma4:
        writer.floats("v.position_embd.weight", 2, 10240, shape.width, std=0.1)
    else:
        writer.floats("v.position_embd.weight", side * side, shape.width, std=0.1)
    for layer in range(shape.layers):
        _write_layer(writer, shape, f"v.blk.{layer}.")
    _write_projector(writer, shape)
    writer.close()
    return path


def _write_layer(writer: Writer, shape: Shape, at: str) -> None:
    width, ffn, head = shape.width, shape.ffn, shape.width // shape.heads
    is_gemma4 = shape.projector == "gemma4v"
    norms = ["ln1", "ln2", *(("attn_post_norm", "ffn_post_norm") if is_gemma4 else ())]
    matrices = [("attn_out", width, width, 0.5), ("ffn_up", ffn, width, 1.0)]
    matrices.append(("ffn_down", width, ffn, 0.5))
    if shape.projector == "qwen3vl_merger":
        matrices.append(("attn_qkv", 3 * width, width, 1.0))
    else:
        matrices += [(f"attn_{one}", width, width, 1.0) for one in "qkv"]
    if shape.is_gated:
        matrices.append(("ffn_gate", ffn, width, 1.0))
    for name in norms:
        writer.floats(f"{at}{name}.weight", width, std=0.1, mean=1.0)
    for name, rows, cols, gain in sorted(matrices):
        writer.matrix(f"{at}{name}.weight", rows, cols, gain)
    if is_gemma4:
        for name in ("attn_q_norm", "attn_k_norm"):
            writer.floats(f"{at}{name}.weight", head, std=0.05, mean=0.3)
        for name, *_ in matrices:
            for end, value in (("max", 20.0), ("min", -20.0)):
                for of in ("input", "output"):
                    writer.floats(f"{at}{name}.{of}_{end}", 1, std=0.0, mean=value)
        return
    for name in ("ln1", "ln2"):
        writer.floats(f"{at}{name}.bias", width)
    for name, rows, *_ in matrices:
        writer.floats(f"{at}{name}.bias", rows)


def _write_projector(writer: Writer, shape: Shape) -> None:
    width, merged = shape.width, shape.width * shape.merge**2
    if shape.projector == "gemma4v":
        writer.matrix("mm.input_projection.weight", shape.text, width)
        return
    writer.floats("v.post_ln.weight", width, std=0.1, mean=1.0)
    writer.floats("v.post_ln.bias", width)
    if shape.projector == "idefics3":
        writer.matrix("mm.model.fc.weight", shape.text, merged)
    elif shape.projector == "gemma3":
        writer.floats("mm.soft_emb_norm.weight", width, std=0.1, mean=1.0)
        writer.half("mm.input_projection.weight", width, shape.text, std=width**-0.5)
    else:
        for name, rows in (("mm.0", merged), ("mm.2", shape.text)):
            writer.matrix(f"{name}.weight", rows, merged)
            writer.floats(f"{name}.bias", rows)


def write_text(shape: Shape, path: Path, layers: int = 1) -> Path:
    """Write a language model that reads the tower's rows; one layer costs next to nothing."""
    writer = Writer(path, "llama", Q8_0, seed=2)
    width, head = shape.text, 64
    heads, ffn, keys = width // head, 64 if layers == 1 else 4 * width, 1 if layers == 1 else 4
    writer.keys({"general.name": path.stem, "tokenizer.ggml.model": "gpt2"})
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "context_length": 8192,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": keys,
        "rope.dimension_count": head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    if shape.projector == "qwen3vl_merger":
        sizes["rope.dimension_sections"] = [12, 10, 10, 0]
    writer.keys({f"llama.{key}": value for key, value in sizes.items()})
    tokens = [*_tokens(shape.token)]
    writer.keys({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 0})
    writer.keys({"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.merges": ["a b"]})
    writer.out.add_token_list([token for token, _ in tokens])
    writer.out.add_token_types([kind for _, kind in tokens])
    writer.out.add_chat_template(TEMPLATE.replace("IMAGE", shape.token))
    writer.matrix("token_embd.weight", VOCABULARY, width)
    writer.floats("output_norm.weight", width, mean=1.0)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.floats(f"blk.{layer}.{name}.weight", width, mean=1.0)
        for name, rows, cols in (
            ("attn_q", width, width),
            ("attn_k", keys * head, width),
            ("attn_v", keys * head, width),
            ("attn_output", width, width),
            ("ffn_gate", ffn, width),
            ("ffn_up", ffn, width),
            ("ffn_down", width, ffn),
        ):
            writer.matrix(f"blk.{layer}.{name}.weight", rows, cols)
    writer.close()
    return path


def _tokens(image: str) -> Iterator[tuple[str, gguf.TokenType]]:
    """The vocabulary: a token for each byte, and those that pictures need."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in alphabet]
    alphabet |= {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    control = ["<|begin|>", "<|end|>", image, "<fake_token_around_image>", "<global-img>"]
    control += [f"<row_{y}_col_{x}>" for y in range(1, 7) for x in range(1, 7)]
    yield from ((token, gguf.TokenType.CONTROL) for token in control)
    yield from ((alphabet[byte], gguf.TokenType.NORMAL) for byte in range(256))
    yield "ab", gguf.TokenType.NORMAL  # of the one merge: readers want at least one
    for number in range(len(control) + 257, VOCABULARY):
        yield f"[PAD{number}]", gguf.TokenType.UNUSED


def picture_of(shape: Shape) -> NDArray[np.uint8]:
    """Return a picture with structure: waves of different lengths, and some noise."""
    y, x = np.indices(shape.picture, np.float32)
    waves = [np.sin(y / a + x / b) for a, b in ((17, 41), (7, -23), (90, 11))]
    noise = np.random.default_rng(3).standard_normal((*shape.picture, 3))
    return np.clip(128 + 90 * np.stack(waves, 2) + 8 * noise, 0, 255).astype(np.uint8)


def files_of(name: str, folder: Path, layers: int = 1) -> tuple[Path, Path, Path]:
    """Return the paths of a shape's text and its towers in f16 and q8_0; written if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / (f"{name}-text.gguf" if layers == 1 else f"{name}-text-{layers}.gguf")
    towers = [folder / f"mmproj-{name}-{kind}.gguf" for kind in ("f16", "q8_0")]
    if not text.exists():
        write_text(SHAPES[name], text, layers)
    for path, kind in zip(towers, (F16, Q8_0), strict=True):
        if not path.exists():
            write_mmproj(SHAPES[name], path, kind)
    return text, towers[0], towers[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files of shapes."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.tower_files")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(SHAPES)} [all]")
    parser.add_argument("--layers", type=int, default=1, help="of the text [%(default)s]")
    options = parser.parse_args(arguments)
    for name in options.names or SHAPES:
        print(*files_of(name, options.folder, options.layers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
