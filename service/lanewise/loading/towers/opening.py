"""Opens the tower of a directory, or of an mmproj file beside a GGUF file, as a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import GGUF, HF
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sources import Sources
from lanewise.loading.base.vision import VisionFacts
from lanewise.loading.files.gguf import GgufFile, read_sources
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.harmless import refuse_unknown_config
from lanewise.loading.programs.native_program import check_program
from lanewise.loading.towers.table import TOWERS, gguf_tower, hf_tower
from lanewise.loading.towers.tower import Tower, TowerFile

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
IMAGE_TOKENS = ("image_token_id", "image_token_index")
MMPROJ = "mmproj*.gguf"


def add_hf_tower(opened: Checkpoint, config: Fields, sources: Sources) -> None:
    """Give a directory's checkpoint its tower, if it is of a known kind and its tensors are there.

    ``config`` is the whole config.json and ``sources`` has all tensors.
    """
    tower = hf_tower(config.text("model_type", default=""))
    vision = config.raw("vision_config")
    if tower is None or opened.config.pooling is not None:
        return
    found = {}
    for name, tensor in sources.items():
        if (plain := name.removeprefix("model.")).startswith(tower.tensors):
            found[plain] = tensor
    if not any(name.startswith(tower.tensors[0]) for name in found):
        return
    if not isinstance(vision, Mapping):
        raise config.fail("vision_config", "an object")
    preprocessor = read_preprocessor(opened.path)
    check_pixels(Fields(preprocessor, f"{opened.path / PREPROCESSOR}"))
    outer = {name: config.raw(name) for name in tower.outer if name in config.values}
    statistics = {name: preprocessor.get(name, tower.preprocessor[name]) for name in STATISTICS}
    text_is = {"text_width": opened.config.hidden_size, "text_eps": opened.config.rms_norm_eps}
    known = outer | statistics | text_is
    meanings = {**tower.defaults, **tower.outer}
    file = TowerFile({**vision, **known}, f"{config.source}: vision_config", meanings, HF, found)
    token = next(
        (config.integer(name, least=0) for name in IMAGE_TOKENS if config.is_set(name)), None
    )
    text = config.raw("text_config")
    sections = sections_of_text(text if isinstance(text, Mapping) else {})
    opened.config = text_beside(tower, opened.config, sections, config.source)
    _add(opened, tower, file, found, token, {**tower.preprocessor, **preprocessor})
    opened.vision = replace(opened.vision, family=config.text("model_type"))
    refuse_unknown_config(file, ("model_type", "num_channels"))


def sections_of_text(text: Mapping[str, Any]) -> Any:
    """Return how many pairs of a text_config turn by each axis; None if it does not say."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.get(name)
        if isinstance(rope, Mapping) and "mrope_section" in rope:
            return rope["mrope_section"]
    return None


def text_beside(tower: Tower, config: ModelConfig, sections: Any, source: str) -> ModelConfig:
    """Return the language model as it is beside a tower."""
    if tower.n_axes == 1:
        return check_program(tower.text(config, ()), source)
    numbers = [*(sections if isinstance(sections, list | tuple) else ())][: tower.n_axes]
    half = config.ropes[0].rotated // 2 if config.ropes else 0
    whole = len(numbers) == tower.n_axes and all(type(n) is int and n >= 0 for n in numbers)
    if not whole or sum(numbers) != half:
        raise ModelFileError(
            f"{source}: {sections!r} pairs of RoPE turn by each of {tower.n_axes} positions;"
            f" numbers that add up to {half} are needed"
        )
    return check_program(tower.text(config, numbers), source)


STATISTICS = ("image_mean", "image_std")


def read_preprocessor(folder: Path) -> Mapping[str, Any]:
    """Return how pictures are prepared, from whichever file says it; {} if none does."""
    if (folder / PREPROCESSOR).is_file():
        return read_object(folder / PREPROCESSOR)
    if not (folder / PROCESSOR).is_file():
        return {}
    inner = read_object(folder / PROCESSOR).get("image_processor", {})
    return inner if isinstance(inner, dict) else {}


def check_pixels(preprocessor: Fields) -> None:
    """Raise ModelFileError if pixels become floats in another way than a tower makes them."""
    for name in ("do_rescale", "do_normalize"):
        if not preprocessor.flag(name, default=True):
            raise preprocessor.fail(name, "true")
    if abs(preprocessor.number("rescale_factor", default=1 / 255) * 255 - 1) > 1e-6:
        raise preprocessor.fail("rescale_factor", "1/255")


def _add(
    opened: Checkpoint,
    tower: Tower,
    file: TowerFile,
    sources: Sources,
    token: int | None,
    preprocessor: Mapping[str, Any],
    close: Callable[[], None] = lambda: None,
    path: Path | None = None,
) -> None:
    """Make the checkpoint of the tower, and of ``opened`` one that has it."""
    path = path or opened.path
    if opened.config.residual_scale != 1.0:
        raise ModelFileError(f"{opened.path}: residual_scale is not 1, which a tower's rows need")
    config = check_program(tower.program(file), file.source)
    assert config.pooling is not None
    assert config.patches is not None
    outputs = config.pooling.dense[-1].outputs if config.pooling.dense else config.hidden_size
    if outputs != opened.config.hidden_size:
        raise ModelFileError(
            f"{path}: its rows have {outputs} values; {opened.path} reads rows of"
            f" {opened.config.hidden_size}"
        )
    if config.patches.taps:
        text = replace(opened.config, n_taps=len(config.patches.taps))
        opened.config = check_program(text, str(opened.path))
    named = Rearranged(sources, file.column)
    interleaved = file.is_gguf and tower.gguf_interleaved_rope
    (tower.gguf_tensors if file.is_gguf else tower.hf_tensors)(named, config)
    tensors = bind_tensors(config, named.out, file.column, interleaved, str(path))
    opened.tower = Checkpoint(path, opened.name, config, tensors, opened.tokenizer, close)
    opened.vision = VisionFacts(
        family=tower.names[0],
        patch_size=config.patches.side,
        merge=config.patches.merge,
        image_size=config.patches.side * isqrt(config.n_positions),
        image_token_id=token,
        preprocessor=preprocessor,
        n_axes=tower.n_axes,
        both_ways=tower.both_ways,
    )
    opened.also_close(opened.tower.close)


def add_mmproj(opened: Checkpoint, given: Path | None) -> None:
    """Give a GGUF file's checkpoint the tower of ``given``, or of the one file beside it.

    A file beside it is left out if it is for another model; one that is given must fit.
    """
    if given is not None:
        _add_mmproj(opened, given)
        return
    beside = sorted(path for path in opened.path.parent.glob(MMPROJ) if path != opened.path)
    fitting = [path for path in beside if fits(path, opened.config.hidden_size)]
    if opened.config.pooling is None and fitting:
        _add_mmproj(opened, best_of(fitting, opened.path))


def best_of(paths: list[Path], model: Path) -> Path:
    """Return the file to use of several: the one that is smallest, which is the most quantized."""
    return min(paths, key=lambda path: (path.stat().st_size, path.name))


def fits(path: Path, width: int) -> bool:
    """Return whether a file is a known tower that makes rows of a width."""
    try:
        with closing(GgufFile(path)) as file:
            fields = Fields(file.metadata, str(path))
            known = gguf_tower(fields.text("clip.projector_type", default="")) is not None
            return known and fields.values.get("clip.vision.projection_dim") == width
    except ModelFileError:
        return False


def _add_mmproj(opened: Checkpoint, path: Path) -> None:
    file = GgufFile(path)
    try:
        fields = Fields(file.metadata, str(path))
        projector = fields.text("clip.projector_type", default="")
        tower = gguf_tower(projector)
        if tower is None:
            accepted = ", ".join(known.projector for known in TOWERS)
            raise fields.fail("clip.projector_type", f"one of {accepted}")
        more = activation_of(fields) | {"text_eps": opened.config.rms_norm_eps}
        sources = {
            name: tensor
            for name, tensor in read_sources([file]).items()
            if name.startswith(("v.", "mm."))
        }
        clip = TowerFile(file.metadata | more, str(path), {}, GGUF, sources)
        preprocessor = dict(tower.preprocessor) | {
            name: clip.raw(name) for name in STATISTICS if clip.is_set(name)
        }
        if clip.is_set("preproc_image_size"):
            preprocessor["size"] = {"longest_edge": clip.integer("preproc_image_size")}
            preprocessor["max_image_size"] = {"longest_edge": clip.square("image_size")}
        text = opened.tokenizer.gguf or {}
        sections = text.get(f"{text.get('general.architecture')}.rope.dimension_sections")
        opened.config = text_beside(tower, opened.config, sections, str(opened.path))
        tokens = text.get("tokenizer.ggml.tokens", [])
        token = tokens.index(tower.image_token) if tower.image_token in tokens else None
        _add(opened, tower, clip, sources, token, preprocessor, lambda: close_all([file]), path)
    except BaseException:
        file.close()
        raise


def activation_of(fields: Fields) -> dict[str, Any]:
    """Return the activation that an mmproj file asks for."""
    if fields.flag("clip.use_gelu", default=False):
        return {"hidden_act": "gelu_pytorch_tanh"}
    if fields.flag("clip.use_silu", default=False):
        return {"hidden_act": "silu"}
    raise fields.fail("clip.use_gelu", "true (or clip.use_silu)")
