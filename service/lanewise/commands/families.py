"""``lanewise families``: which models are read, from the table that reads them."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from lanewise.loading.families.family import Family
from lanewise.loading.families.table import FAMILIES, REASONS
from lanewise.loading.towers.table import TOWERS
from lanewise.loading.towers.tower import Tower
from lanewise.settings import FamiliesSettings, SettingsError, flag_of


@dataclass(frozen=True, slots=True)
class Row:
    """One family: what its files call it, and what its own file here says of it."""

    model_type: str
    architecture: str | None
    about: str


def run(settings: FamiliesSettings, sources: Mapping[str, str]) -> None:
    """Print the families that are read, and which are refused for what reason."""
    # A variable or file of the server's may name one.
    if settings.model is not None and sources.get("model") == flag_of("model"):
        raise SettingsError(f"MODEL: {settings.model!r} given; lanewise families takes none")
    rows = [row_of(family) for family in FAMILIES]
    towers = [row_of_tower(tower) for tower in TOWERS]
    if settings.json:
        refused = {reason: list(names) for reason, names in REASONS.items()}
        found = {"families": rows, "towers": towers}
        shown = {kind: [asdict(row) for row in of_kind] for kind, of_kind in found.items()}
        print(json.dumps(shown | {"refused": refused}))
        return
    table = Table("config.json", "GGUF", "", title="Families that are read", title_justify="left")
    for row in rows:
        table.add_row(row.model_type, row.architecture or "", row.about)
    pictures = Table(
        "config.json", "mmproj", "", title="Models that read pictures", title_justify="left"
    )
    for row in towers:
        pictures.add_row(row.model_type, row.architecture or "", row.about)
    console = Console()
    console.print(table)
    console.print(pictures)
    console.print(
        "Each is compared with transformers on tiny models: logits of F32 weights, greedy answers,"
        " and the same bits from both kinds of file."
    )
    for reason, names in REASONS.items():
        console.print(f"\nRefused, because {reason}: {', '.join(names)}", highlight=False)


def row_of(family: Family) -> Row:
    """The family's names, and the first line of the file that it is in."""
    about = sys.modules[family.program.__module__].__doc__ or ""
    return Row(family.name, family.gguf, about.partition("\n")[0].strip())


def row_of_tower(tower: Tower) -> Row:
    """What files call a kind of tower, and the first line of the file that it is in."""
    about = sys.modules[tower.program.__module__].__doc__ or ""
    return Row(", ".join(tower.names), tower.projector, about.partition("\n")[0].strip())
