"""Loads the model that a command's settings name, with a progress bar on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lanewise.commands.progress import bytes_bar
from lanewise.host import MemoryLimit, cpu_name, default_threads, memory_limit
from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.checkpoints.drafts import read_head
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model, placing_refusal, tuning
from lanewise.runtime.cpu import set_fetch_ahead
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_bytes
from lanewise.settings import (
    ComputeSettings,
    ModelSettings,
    PackedSettings,
    SettingsError,
    TowerSettings,
    WeightSettings,
)
from lanewise.told import told
from lanewise.topology import Placement, place


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model and what its settings came to."""

    checkpoint: Checkpoint
    model: Model
    threads: int
    kv_type: str
    placement: Placement


def warn(sentence: str) -> None:
    """Tell the user on stderr what is not an error."""
    print(f"lanewise: warning: {told(sentence)}", file=sys.stderr)


def threads_of(settings: ComputeSettings) -> int:
    """The threads asked for, or those this host suggests."""
    return settings.threads or default_threads().threads


@contextmanager
def open_model(
    settings: ModelSettings, longest: int | None = None, draft: str | None = None
) -> Iterator[Opened]:
    """Load the model of ``settings``; it is closed when the block is left.

    ``longest`` is how many tokens its texts will have at most, None: as many as the model allows.
    ``draft`` is a head that guesses further tokens, which is loaded too: mtp, or its path.
    """
    threads = threads_of(settings)
    drafted = read_head(draft)
    with open_checkpoint(
        resolve_model(settings.model), mtp=drafted.mtp, head=drafted.head
    ) as checkpoint:
        checkpoint.limit_context(longest)
        tuning.prepare(settings.isa, cpu_name(), enabled=settings.autotune)
        set_fetch_ahead(settings.fetch_ahead)
        size = held_bytes(checkpoint, settings.weights)
        placement = placement_for(settings, threads, size, memory_limit())
        with load_model(checkpoint, settings, threads, settings.load, placement) as model:
            kv_type = resolve_kv_type(settings.kv_cache_dtype, model.weights)
            yield Opened(checkpoint, model, threads, kv_type, placement)


def placement_for(
    settings: ModelSettings, threads: int, weight_bytes: int | None, limit: MemoryLimit
) -> Placement:
    """Where threads and weights of that many bytes go; None: what can be said without a model."""
    return place(settings, threads, weight_bytes=weight_bytes, limit=limit, refusal=placing_refusal)


def load_model(
    checkpoint: Checkpoint,
    settings: WeightSettings,
    threads: int,
    load: str = "auto",
    placement: Placement | None = None,
) -> Model:
    """Load a model under a bar; the caller closes it."""
    with bytes_bar("packing") as bar:
        task = bar.add_task(checkpoint.name, total=None)
        return Model.load(
            checkpoint,
            weights=settings.weights,
            isa=settings.isa,
            threads=threads,
            load=load,
            placement=placement,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def mmproj_of(settings: PackedSettings) -> Path | None:
    """The mmproj file that is given; SettingsError where what reads pictures is to be left out."""
    if settings.mmproj is None:
        return None
    if settings.text_only:
        raise SettingsError("--mmproj: given beside --text-only; accepted: one of them")
    return Path(settings.mmproj).expanduser()


def load_tower(
    checkpoint: Checkpoint, settings: TowerSettings, threads: int, isa: str | None = None
) -> Model:
    """Load the tower of a model under a bar, as the settings ask; the caller closes it."""
    with bytes_bar("packing") as bar:
        task = bar.add_task(f"tower of {checkpoint.name}", total=None)
        return Model.load(
            checkpoint,
            weights=settings.tower_weights,
            isa=isa,
            threads=threads,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
