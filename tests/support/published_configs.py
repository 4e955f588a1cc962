"""The config.json of each family as its makers publish it, with the sizes of a tiny model.

The files of tests/data/configs have a case for each. `like` names parts or cases that a case begins
with, `without` the keys of those that it lacks, `wraps` the case that is its text_config, `why` is
for readers; all else is the config's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Config = dict[str, Any]

FOLDER = Path(__file__).parents[1] / "data" / "configs"
DECODERS = ("parts", "states", "families", "dense", "wired", "latent", "mixtures", "further")
VOCAB, CONTEXT = 256, 256  # of part SIZES


def _whole(own: Config, known: dict[str, Config]) -> Config:
    config: Config = {}
    for name in own.pop("like", ()):
        config |= known[name]
    for key in own.pop("without", ()):
        del config[key]
    if "wraps" in own:
        config["text_config"] = known[own.pop("wraps")]
    own.pop("why", None)
    return config | own


def _sections(*files: str) -> dict[str, dict[str, Config]]:
    """What the files have, by its section: a file may name what those before it have."""
    known: dict[str, Config] = {}
    sections: dict[str, dict[str, Config]] = {}
    for file in files:
        for section, rows in json.loads((FOLDER / f"{file}.json").read_text()).items():
            for name, own in rows.items():
                config = sections.setdefault(section, {})[name] = _whole(own, known)
                known.setdefault(name, config)
    return sections


_decoders, _encoders = _sections(*DECODERS), _sections("encoders")
CASES = _decoders["cases"]
# What transformers computes in the place of families whose code it does not have.
STAND_INS = _decoders["stand_ins"]
ENCODERS = _encoders["cases"]
# As makers publish encoders: where transformers does not read that, the case is as it writes it.
PUBLISHED = ENCODERS | _encoders["published"]
