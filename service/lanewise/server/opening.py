"""Opens a model: its weights in a thread, its tokenizer and the modules to come in this one."""

from __future__ import annotations

import contextlib
import importlib
import logging
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from lanewise import host, topology
from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.loading.checkpoints.hub import REAL_ONE, TOY, is_toy, resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.server.checks_first import check_first
from lanewise.server.model_text import Text, make_text, text_of_pooled
from lanewise.server.progress import progress_of
from lanewise.settings import Settings

if TYPE_CHECKING:
    from lanewise.runtime import Model

logger = logging.getLogger(__name__)


class Opened:
    """What of a model takes little memory: its file's header, and what belongs to its text."""

    def __init__(self, settings: Settings) -> None:
        self.path = resolve_model(settings.model)
        self.checkpoint = _open_files(settings, self.path)
        self.text = text_of_pooled(self.checkpoint, make_text(settings, self.checkpoint.tokenizer))
        given = (settings.mmproj, settings.chat_template, settings.model)
        self._files = (*self.checkpoint.files, *(Path(one) for one in given if one is not None))
        self._states = self._now()
        # A name of the hub may stand for other files next time; a limited tokenizer is a process.
        is_here = settings.model is None or Path(settings.model).expanduser().exists()
        self.may_be_shared = is_here and not self.text.tokenizer.is_limited

    def is_changed(self) -> bool:
        """Whether another file lies there now."""
        return self._now() != self._states

    def _now(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for path in self._files:
            for one in (path, *sorted(path.glob("*"))):
                with contextlib.suppress(OSError):
                    about = one.stat()
                    found.append((one, about.st_ino, about.st_size, about.st_mtime_ns))
        return found


def _open_files(settings: Settings, path: Path) -> Checkpoint:
    draft = read_draft(settings.draft if settings.speculation else None)
    checkpoint = open_checkpoint(
        path,
        settings.hf_overrides,
        mtp=draft.mtp,
        head=draft.head,
        mmproj=None if settings.mmproj is None else Path(settings.mmproj).expanduser(),
    )
    checkpoint.limit_context(settings.max_model_len)
    if checkpoint.config.is_for_short_context:
        logger.info("LongRoPE: factors for short texts, max_model_len being what it is")
    return checkpoint


def open_model(settings: Settings, threads: int, limit: host.MemoryLimit) -> tuple[Model, Text]:
    """The model and what belongs to its text; of the file only mapped weights stay in memory."""
    path = resolve_model(settings.model)
    with host.garbage_left_alone(for_good=True), _open_files(settings, path) as checkpoint:
        check_first(settings, checkpoint, limit)
        loaded = load_beside(settings, checkpoint, threads, limit)
    return _told_of_toy(*loaded) if is_toy(path) else loaded


def load_opened(
    settings: Settings, opened: Opened, threads: int, limit: host.MemoryLimit
) -> tuple[Model, Text]:
    """The same of a model that is open."""
    with host.garbage_left_alone(for_good=True), opened.checkpoint as checkpoint:
        check_first(settings, checkpoint, limit)
        events = threading.Event(), threading.Event()
        model = load_weights(settings, checkpoint, threads, limit, *events)
    return _told_of_toy(model, opened.text) if is_toy(opened.path) else (model, opened.text)


def _told_of_toy(model: Model, text: Text) -> tuple[Model, Text]:
    """The bundled model with what its users must be told."""
    logger.info("%s; %s", TOY, REAL_ONE)
    notice = f"{TOY[0].upper()}{TOY[1:]}. {REAL_ONE[0].upper()}{REAL_ONE[1:]}"
    return model, text._replace(notice=notice)


def load_beside(
    settings: Settings, checkpoint: Checkpoint, threads: int, limit: host.MemoryLimit
) -> tuple[Model, Text]:
    """Load the weights in a thread, and meanwhile do in this one what needs the interpreter."""
    importlib.import_module("lanewise.runtime")
    begun, stop = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1, "lanewise-load") as pool:
        loading = pool.submit(load_weights, settings, checkpoint, threads, limit, begun, stop)
        loading.add_done_callback(lambda _: begun.set())
        try:
            # The tokenizer library keeps the interpreter for a third of a second at a time: a
            # thread that has not reached native code by then waits as long.
            begun.wait()
            text = text_of_pooled(checkpoint, make_text(settings, checkpoint.tokenizer))
            importlib.import_module("lanewise.server.serve")
            return loading.result(), text
        except BaseException:
            stop.set()  # a model is of no use without its tokenizer
            with contextlib.suppress(Exception):
                loading.result().close()
            raise


def load_weights(
    settings: Settings,
    checkpoint: Checkpoint,
    threads: int,
    limit: host.MemoryLimit,
    begun: threading.Event,
    stop: threading.Event,
) -> Model:
    """The model; ``begun`` is set once native code runs, and ``stop`` makes it give up."""
    from lanewise.runtime import Model, tuning
    from lanewise.runtime.cpu import set_fetch_ahead
    from lanewise.runtime.targets import hint_of_floats

    tuning.prepare(settings.isa, host.cpu_name(), enabled=settings.autotune)
    set_fetch_ahead(settings.fetch_ahead)
    placement = _place(settings, checkpoint, threads, limit)
    if (hint := hint_of_floats(checkpoint, settings.weights, platform.machine())) is not None:
        logger.info("%s", hint)
    with progress_of(checkpoint.name) as progress:

        def show(done: int, total: int) -> None:
            begun.set()
            if stop.is_set():
                raise InterruptedError("loading was given up")
            progress(done, total)

        model = Model.load(
            checkpoint,
            weights=settings.weights,
            isa=settings.isa,
            threads=threads,
            load=settings.load,
            placement=placement,
            progress=show,
        )
        if checkpoint.tower is None:
            return model
        try:
            model.tower = Model.load(
                checkpoint.tower,
                weights=settings.tower_weights,
                isa=settings.isa,
                threads=threads,
                load=settings.load,
                placement=placement,
            )
        except BaseException:
            model.close()
            raise
        return model


def _place(
    settings: Settings, checkpoint: Checkpoint, threads: int, limit: host.MemoryLimit
) -> topology.Placement:
    from lanewise.runtime import placing_refusal
    from lanewise.runtime.targets import held_bytes, tower_bytes

    placement = topology.place(
        settings,
        threads,
        weight_bytes=held_bytes(checkpoint, settings.weights)
        + tower_bytes(checkpoint, settings.tower_weights),
        limit=limit,
        refusal=placing_refusal,
    )
    logger.info("threads %s; memory %s", placement.threads, placement.memory)
    return placement
