"""``lanewise list``: the models that were downloaded, and what each takes."""

import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Column, Table

from lanewise.host import format_size
from lanewise.loading.checkpoints import small_model
from lanewise.settings import ListSettings

WIDTH = 200


@dataclass(frozen=True, slots=True)
class Download:
    """A model in a cache."""

    name: str
    n_bytes: int
    path: str


def run(settings: ListSettings) -> None:
    """Print a table or a JSON object."""
    found = downloads()
    if settings.json:
        print(json.dumps({"models": [asdict(one) for one in found]}))
        return
    if not found:
        print("no model has been downloaded; lanewise pull MODEL downloads one")
        return
    size = Column("size", justify="right", no_wrap=True)
    table = Table(Column("model", no_wrap=True), size, "path", box=None, pad_edge=False)
    for one in found:
        table.add_row(one.name, format_size(one.n_bytes), one.path)
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)  # a path is of use only whole
    console.print(table, soft_wrap=True)


def downloads() -> list[Download]:
    """All that is in the caches: the hub's, and ours of the small chat model."""
    found = []
    small = small_model.kept_file()
    if small.is_file():
        found.append(Download(small_model.NAME, small.stat().st_size, str(small)))
    from huggingface_hub import constants, scan_cache_dir  # takes a while to import
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return found
    repositories = [one for one in cache.repos if one.repo_type == "model"]
    repositories.sort(key=lambda one: one.repo_id)
    return found + [
        Download(one.repo_id, one.size_on_disk, str(one.repo_path)) for one in repositories
    ]
