"""Finds the tower of a GGUF file: an mmproj file that is given, or that lies beside it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import GGUF
from lanewise.loading.files.gguf import GgufFile, read_sources
from lanewise.loading.towers.attaching import STATISTICS, Found, attach
from lanewise.loading.towers.table import TOWERS, gguf_tower
from lanewise.loading.towers.tower import Tower, TowerFile

MMPROJ = "mmproj*.gguf"

logger = logging.getLogger(__name__)


def add_mmproj(opened: Checkpoint, given: Path | None) -> None:
    """Give a GGUF file's checkpoint the tower of ``given``, or of a file beside it that fits.

    Of several the smallest is used, which has the fewest bits. A file that is given must fit.
    """
    if given is not None:
        _add(opened, given)
    if given is not None or opened.config.pooling is not None:
        return
    beside = [path for path in opened.path.parent.glob(MMPROJ) if path != opened.path]
    for path in sorted(beside, key=lambda path: (path.stat().st_size, path.name)):
        try:
            if fits(path, opened.config.hidden_size):
                _add(opened, path)
                return
        except ModelFileError as error:
            logger.warning("%s is left out, and pictures are refused: %s", path, error)


def fits(path: Path, width: int) -> bool:
    """Return whether a file is of a known kind and makes rows of a width."""
    with closing(GgufFile(path)) as file:
        fields = Fields(file.metadata, str(path))
        known = gguf_tower(projector_of(fields)) is not None
        return known and fields.values.get("clip.vision.projection_dim") == width


def _add(opened: Checkpoint, path: Path) -> None:
    file = GgufFile(path)
    try:
        fields = Fields(file.metadata, str(path))
        tower = gguf_tower(projector_of(fields))
        if tower is None:
            accepted = ", ".join(known.projector for known in TOWERS if known.projector)
            raise fields.fail("clip.projector_type", f"one of {accepted}")
        sources = {
            name: tensor
            for name, tensor in read_sources([file]).items()
            if name.startswith(("v.", "mm.")) and not name.startswith("mm.a.")
        }
        more = activation_of(fields) | {"text_eps": opened.config.rms_norm_eps}
        clip = TowerFile(file.metadata | more, str(path), {}, GGUF, sources)
        text = opened.tokenizer.gguf or {}
        found = Found(
            tower=tower,
            file=clip,
            path=path,
            family=tower.names[0],
            image_token_id=image_token_of(opened, tower),
            preprocessor=preprocessor_of(tower, clip),
            sections=text.get(f"{text.get('general.architecture')}.rope.dimension_sections"),
            # Of Gemma 4 only small models, which have values for each layer, are causal.
            both_ways=None if opened.config.per_layer_size else "vision",
        )
        attach(opened, found, lambda: close_all([file]))
    except BaseException:
        file.close()
        raise


def image_token_of(opened: Checkpoint, tower: Tower) -> int:
    """Return the id of the token that stands for a picture's rows."""
    tokens = (opened.tokenizer.gguf or {}).get("tokenizer.ggml.tokens", [])
    if tower.image_token not in tokens:
        raise ModelFileError(
            f"{opened.path}: tokenizer.ggml.tokens has no {tower.image_token!r}, which stands for"
            f" pictures beside {tower.projector}"
        )
    return int(tokens.index(tower.image_token))


def preprocessor_of(tower: Tower, clip: TowerFile) -> Mapping[str, Any]:
    """Return how pictures are prepared, under the names of preprocessor_config.json."""
    said: dict[str, Any] = {name: clip.raw(name) for name in STATISTICS if clip.is_set(name)}
    if clip.is_set("preproc_image_size"):
        said["size"] = {"longest_edge": clip.integer("preproc_image_size")}
        said["max_image_size"] = {"longest_edge": clip.square("image_size")}
    return {**tower.preprocessor, **said}


def projector_of(fields: Fields) -> str:
    """Return the kind of an mmproj file; one that hears, too, has a key of its own for that."""
    name = "clip.vision.projector_type"
    return fields.text(name if fields.is_set(name) else "clip.projector_type", default="")


def activation_of(fields: Fields) -> dict[str, Any]:
    """Return the activation that an mmproj file asks for."""
    if fields.flag("clip.use_gelu", default=False):
        return {"hidden_act": "gelu_pytorch_tanh"}
    if fields.flag("clip.use_silu", default=False):
        return {"hidden_act": "silu"}
    return {"hidden_act": "quick_gelu"}
