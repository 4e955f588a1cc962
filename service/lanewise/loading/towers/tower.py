"""A kind of tower: how its files become a program, and its tensors get usual names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import GGUF
from lanewise.loading.base.program import Layer, ModelConfig, Rope
from lanewise.loading.base.sources import Sources
from lanewise.loading.towers.tensors import TowerTensors

CLIP_STATISTICS: Mapping[str, Any] = {  # of many preprocessors, where no file says otherwise
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
MOST_LAYERS = 1000
MOST_PATCHES = 1 << 16  # of one picture, where the file sets no bound
GROUP = 32  # sizes are padded to multiples, so that any matrix can be held in blocks
# A field's name in vision_config to its key in the metadata of an mmproj file.
CLIP_KEYS: Mapping[str, str] = {
    name: f"clip.vision.{key}"
    for name, key in {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "layer_norm_eps": "attention.layer_norm_epsilon",
        "patch_size": "patch_size",
        "image_size": "image_size",
        "image_mean": "image_mean",
        "image_std": "image_std",
        "scale_factor": "projector.scale_factor",
        "text_width": "projection_dim",
        "depth": "block_count",
        "num_heads": "attention.head_count",
        "spatial_merge_size": "spatial_merge_size",
        "is_deepstack_layers": "is_deepstack_layers",
        "out_hidden_size": "projection_dim",
        "downsample_factor": "projector.scale_factor",
        "preproc_image_size": "preproc_image_size",
    }.items()
}

# Names in a layer of an mmproj file; the matrices in the order of clamps.
CLIP_NORMS: Mapping[str, Role] = {"ln1": Role.ATTN_NORM, "ln2": Role.FFN_NORM}
CLIP_MATRICES: Mapping[str, Role] = {
    "attn_q": Role.ATTN_Q,
    "attn_k": Role.ATTN_K,
    "attn_v": Role.ATTN_V,
    "attn_out": Role.ATTN_OUTPUT,
    "ffn_gate": Role.FFN_GATE,
    "ffn_up": Role.FFN_UP,
    "ffn_down": Role.FFN_DOWN,
}
CLIP_LAYER: Mapping[str, Role] = {**CLIP_NORMS, **CLIP_MATRICES}


class TowerFile(Fields):
    """The fields of a tower in either kind of file, under the names of a vision_config.

    In a directory they are its vision_config, with ``scale_factor`` and the like of the config
    around it, ``image_mean`` and ``image_std`` of its preprocessor, and ``text_width``.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        source: str,
        meanings: Mapping[str, Any],
        column: int,
        tensors: Sources,
    ) -> None:
        super().__init__(values, source, meanings)
        self.column = column  # HF or GGUF
        self.tensors = tensors

    @property
    def is_gguf(self) -> bool:
        """Whether this is an mmproj file."""
        return self.column == GGUF

    def key_of(self, name: str) -> str:
        """Return the file's key for a field."""
        return CLIP_KEYS.get(name, name) if self.is_gguf else name

    def rows_of(self, name: str) -> int:
        """Return the number of rows of a tensor; 1 if it is missing, which the binding reports."""
        shape = self.tensors[name].shape if name in self.tensors else ()
        return shape[0] if shape else 1

    def layers_of(self, name: str = "num_hidden_layers") -> int:
        """Return the number of layers."""
        if (n_layers := self.integer(name)) > MOST_LAYERS:
            raise self.fail(name, f"at most {MOST_LAYERS}")
        return n_layers

    def check_colours(self, name: str = "num_channels") -> None:
        """Raise ModelFileError if pictures are not R, G and B."""
        if self.integer(name, default=3) != 3:
            raise self.fail(name, "3")

    def three(self, name: str) -> tuple[float, float, float]:
        """Return a number for each of R, G and B."""
        value = self.meant(name)
        values = value if isinstance(value, list | tuple) and len(value) == 3 else ()
        if values and all(type(one) in (int, float) and 0 <= one <= 1e3 for one in values):
            r, g, b = map(float, values)
            return r, g, b
        raise self.fail(name, "a list of three numbers, of R, G and B,")

    def square(self, name: str) -> int:
        """Return the side of a square that may be written as a list of equal sides."""
        value = self.meant(name)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            return self.replacing({name: value[0]}).integer(name)
        return self.integer(name)


@dataclass(frozen=True)
class TextFacts:
    """What a file says of its language model beside pictures."""

    sections: Sequence[int] = ()  # pairs of RoPE that turn by each axis
    both_ways: str | None = None  # use_bidirectional_attention


@dataclass(frozen=True)
class Tower:
    """One kind of tower with what follows it up to the language model."""

    names: tuple[str, ...]  # model_type of whole models
    projector: str | None  # clip.projector_type of mmproj files; None: these are not read
    program: Callable[[TowerFile], ModelConfig]
    # Renames tensors to the names of TENSOR_NAMES; those of a directory are the whole model's.
    hf_tensors: Callable[[TowerTensors, ModelConfig], None]
    gguf_tensors: Callable[[TowerTensors, ModelConfig], None]
    # Of a directory: fields of the config around vision_config, and its class's defaults.
    outer: Mapping[str, Any]
    defaults: Mapping[str, Any]
    preprocessor: Mapping[str, Any]  # defaults of its preprocessor
    image_token: str  # in vocabularies of GGUF files
    tensors: tuple[str, ...]  # how names of its tensors in directories begin, behind "model."
    # What the language model must be beside it; the numbers are those of pairs for each axis.
    text: Callable[[ModelConfig, TextFacts], ModelConfig] = lambda config, facts: config
    # Rows of Q and K in mmproj files have the two dimensions of a RoPE pair side by side.
    gguf_interleaved_rope: bool = False
    n_axes: int = 1
    # Its program has the mean and the deviation; what the preprocessor does does not matter.
    normalizes: bool = False
    row_token_id: int | None = None  # see VisionFacts


def padded(size: int) -> int:
    """Return a size rounded up to whole groups."""
    return -(-size // GROUP) * GROUP


def theta_of(file: TowerFile, default: float) -> float:
    """Return the base of RoPE's angles."""
    rope = file.meant("rope_parameters")
    settings = Fields(rope if isinstance(rope, Mapping) else file.values, file.source)
    file.ignore("rope_theta")
    return settings.number("rope_theta", default=default)


def turned_by_halves(theta: float, head_dim: int, first: int) -> Rope:
    """Return RoPE whose first half of pairs turns by the axis ``first``, the second by the other.

    The angles of both halves are the same.
    """
    quarter = head_dim // 4
    one = tuple(round_to_f32(theta ** (-2 * i / (2 * quarter))) for i in range(quarter))
    axes = (first,) * quarter + (1 - first,) * quarter
    return Rope(theta, head_dim, frequencies=one + one, axes=axes)


def pad_to_groups(tensors: TowerTensors, config: ModelConfig) -> None:
    """Pad matrices to whole groups: the further values are zeros all the way."""
    assert config.patches is not None
    patches, hidden = tensors.usual(Role.PATCHES), config.hidden_size
    tensors.as_matrix(patches)
    tensors.pad(patches, hidden, config.patches.inputs)
    for number in range(config.n_layers):
        size = config.ffn_size(number)
        for role in (Role.FFN_GATE, Role.FFN_UP):
            tensors.pad(tensors.usual(role, number), size, hidden)
        tensors.pad(tensors.usual(Role.FFN_UP_BIAS, number), size)
        tensors.pad(tensors.usual(Role.FFN_DOWN, number), hidden, size)


def seeing_ahead(config: ModelConfig, windowed_only: bool = False) -> ModelConfig:
    """Return a language model whose tokens of a picture see all of it, in all layers or some."""

    def layer_of(layer: Layer) -> Layer:
        attention = layer.attention
        if attention is None or (windowed_only and attention.window is None):
            return layer
        return replace(layer, attention=replace(attention, sees_ahead=True))

    return replace(config, layers=tuple(map(layer_of, config.layers)))


def turned_by_axes(config: ModelConfig, facts: TextFacts) -> ModelConfig:
    """Return a language model whose RoPE turns pairs by three positions, in turns."""
    return replace(
        config,
        ropes=tuple(
            replace(
                rope, axes=tuple(axis_of(pair, facts.sections) for pair in range(rope.rotated // 2))
            )
            for rope in config.ropes
        ),
    )


def axis_of(pair: int, sections: Sequence[int]) -> int:
    """Return which position turns a pair of interleaved M-RoPE."""
    axis = pair % 3
    return axis if axis and pair < 3 * sections[axis] else 0


def side_in_patches(file: TowerFile) -> int:
    """Return how many patches the side of a full picture has."""
    image, patch = file.square("image_size"), file.square("patch_size")
    if image % patch:
        raise ModelFileError(
            f"{file.source}: {file.key_of('image_size')} is {image}, {file.key_of('patch_size')}"
            f" {patch}; a whole number of patches is needed"
        )
    return image // patch
