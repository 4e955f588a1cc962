"""Finds the tower of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.names import HF
from lanewise.loading.base.sources import Sources
from lanewise.loading.programs.harmless import refuse_unknown_config
from lanewise.loading.towers.attaching import STATISTICS, Found, attach
from lanewise.loading.towers.table import hf_tower
from lanewise.loading.towers.tower import Tower, TowerFile

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
IMAGE_TOKENS = ("image_token_id", "image_token_index")


def add_hf_tower(opened: Checkpoint, config: Fields, sources: Sources) -> None:
    """Give a directory's checkpoint its tower, if it is of a known kind and its tensors are there.

    ``config`` is the whole config.json and ``sources`` has all tensors.
    """
    tower = hf_tower(config.text("model_type", default=""))
    if tower is None or opened.config.pooling is not None:
        return
    found = tensors_of(tower, sources)
    if not any(name.startswith(tower.tensors[0]) for name in found):
        return
    vision, text = config.raw("vision_config"), config.raw("text_config")
    if not isinstance(vision, Mapping):
        raise config.fail("vision_config", "an object")
    said: Mapping[str, Any] = text if isinstance(text, Mapping) else {}
    preprocessor = read_preprocessor(opened.path)
    if not tower.normalizes:
        check_pixels(Fields(preprocessor, str(opened.path / PREPROCESSOR)))
    known = {name: config.raw(name) for name in tower.outer if name in config.values}
    known |= {name: preprocessor.get(name, tower.preprocessor[name]) for name in STATISTICS}
    known |= {"text_width": opened.config.hidden_size, "text_eps": opened.config.rms_norm_eps}
    source, meanings = f"{config.source}: vision_config", {**tower.defaults, **tower.outer}
    file = TowerFile({**vision, **known}, source, meanings, HF, found)
    of_image = (name for name in IMAGE_TOKENS if config.is_set(name))
    attach(
        opened,
        Found(
            tower=tower,
            file=file,
            path=opened.path,
            family=config.text("model_type"),
            image_token_id=next((config.integer(name, least=0) for name in of_image), None),
            preprocessor={**tower.preprocessor, **preprocessor},
            sections=sections_of(said),
            both_ways=said.get("use_bidirectional_attention"),
        ),
    )
    refuse_unknown_config(file, ("model_type", "num_channels"))


def tensors_of(tower: Tower, sources: Sources) -> Sources:
    """Return the tensors of a tower, without what a whole model puts before their names."""
    plain = {name.removeprefix("model."): tensor for name, tensor in sources.items()}
    return {name: tensor for name, tensor in plain.items() if name.startswith(tower.tensors)}


def sections_of(text: Mapping[str, Any]) -> Any:
    """Return how many pairs of a text_config turn by each axis; None if it does not say."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.get(name)
        if isinstance(rope, Mapping) and "mrope_section" in rope:
            return rope["mrope_section"]
    return None


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
