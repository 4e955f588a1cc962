"""``lanewise serve``: reads the model's files, and gets everything else ready meanwhile.

Python's part of a start, building a tokenizer of 100,000 tokens and importing modules, takes longer
than loading a packed model, and only native code runs beside it. So the order, here and in
``serve.py``, is: weights load in a thread from the first moment on, while this one makes the
tokenizer and imports the engine; then the model answers its first request while what speaks HTTP is
imported. What only some requests need (``/docs``) is imported by them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from lanewise import host, topology
from lanewise.api.logs import set_up_logging
from lanewise.loading.checkpoint import Checkpoint, TokenizerFiles, open_checkpoint
from lanewise.loading.hub import resolve_model
from lanewise.settings import (
    Settings,
    SettingsError,
    flag_of,
    variable_of,
    with_keys_of_files,
)
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError

if TYPE_CHECKING:
    from lanewise.runtime import Model
    from lanewise.text.tokenizer import Tokenizer

    Text = tuple[Tokenizer, ChatTemplate | None]

logger = logging.getLogger(__name__)

PROGRESS_LINE_S = 5.0
OTHER_FILES = 512  # beside connections: the model's, the library's, connections of probes
UNREAD_BYTES, UNSENT_BYTES = 128 << 10, 64 << 10
SILENT_S = 60  # of a connection, before the kernel asks whether anybody is there


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the result is the exit status."""
    set_up_logging(settings.log_level, settings.log_format)
    warn_of_visible_keys(sys.argv)
    settings = with_keys_of_files(settings)
    _check(settings)
    raise_file_limit(settings.max_connections + OTHER_FILES)
    # Taken before the model is loaded: who learns after minutes that the port is in use?
    with _bind(settings.host, settings.port) as listener:
        threads = settings.threads or host.default_threads().threads
        limit = host.memory_limit()
        model, (tokenizer, template) = _open(settings, threads, limit)
        from lanewise.api import serve

        return serve.serve(settings, model, tokenizer, template, threads, limit, listener)


def _open(settings: Settings, threads: int, limit: host.MemoryLimit) -> tuple[Model, Text]:
    """The model and what belongs to its text; of the file only mapped weights stay in memory."""
    gc.disable()  # what is made here stays: looking for garbage among it takes a tenth of the time
    try:
        with open_checkpoint(resolve_model(settings.model)) as checkpoint:
            model, text = _load_beside(settings, checkpoint, threads, limit)
    finally:
        gc.freeze()
        gc.enable()
    return model, text


def _load_beside(
    settings: Settings, checkpoint: Checkpoint, threads: int, limit: host.MemoryLimit
) -> tuple[Model, Text]:
    """Load the weights in a thread, and meanwhile do in this one what needs the interpreter."""
    importlib.import_module("lanewise.runtime")
    begun, stop = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1, "lanewise-load") as pool:
        loading = pool.submit(_load, settings, checkpoint, threads, limit, begun, stop)
        loading.add_done_callback(lambda _: begun.set())
        try:
            # The tokenizer library keeps the interpreter for a third of a second at a time: a
            # thread that has not reached native code by then waits as long.
            begun.wait()
            text = _make_text(settings, checkpoint.tokenizer)
            importlib.import_module("lanewise.api.serve")
            return loading.result(), text
        except BaseException:
            stop.set()  # nobody waits for a model whose tokenizer cannot be used
            with contextlib.suppress(Exception):
                loading.result().close()
            raise


def _make_text(settings: Settings, files: TokenizerFiles) -> Text:
    from lanewise.text.tokenizer import Tokenizer

    if settings.chat_template is None:
        tokenizer = Tokenizer.from_files(files)
        return tokenizer, tokenizer.chat_template
    with ThreadPoolExecutor(1, "lanewise-template") as pool:
        checking = pool.submit(_check_template, settings, settings.chat_template)
        tokenizer = Tokenizer.from_files(files)
        return tokenizer, ChatTemplate({"default": checking.result()}, tokenizer.special_tokens)


def _check_template(settings: Settings, path: str) -> str:
    """The text of a template that somebody asked for by name, which must be one."""
    from lanewise.api.budgets import TextBudgets
    from lanewise.api.templates import check_alone

    try:
        text = Path(path).read_text(encoding="utf-8")
        check_alone(ChatTemplate({"default": text}), TextBudgets.of(settings))
    except (ChatTemplateError, UnicodeDecodeError) as error:
        raise SettingsError(f"chat_template: {path}: {error}") from None
    return text


def _load(
    settings: Settings,
    checkpoint: Checkpoint,
    threads: int,
    limit: host.MemoryLimit,
    begun: threading.Event,
    stop: threading.Event,
) -> Model:
    from lanewise.runtime import Model, tuning

    tuning.prepare(settings.isa, host.cpu_name(), enabled=settings.autotune)
    placement = _place(settings, checkpoint, threads, limit)
    with _progress(checkpoint.name) as progress:

        def show(done: int, total: int) -> None:
            begun.set()
            if stop.is_set():
                raise InterruptedError("loading was given up")
            progress(done, total)

        return Model.load(
            checkpoint,
            weights=settings.weights,
            isa=settings.isa,
            threads=threads,
            load=settings.load,
            placement=placement,
            progress=show,
        )


def _place(
    settings: Settings, checkpoint: Checkpoint, threads: int, limit: host.MemoryLimit
) -> topology.Placement:
    from lanewise.runtime import placing_refusal
    from lanewise.runtime.targets import held_bytes

    placement = topology.place(
        settings,
        threads,
        weight_bytes=held_bytes(checkpoint, settings.weights),
        limit=limit,
        refusal=placing_refusal,
    )
    logger.info("threads %s; memory %s", placement.threads, placement.memory)
    return placement


def _check(settings: Settings) -> None:
    if settings.max_pending_body_bytes < settings.max_body_bytes:
        raise SettingsError(
            f"max_pending_body_bytes is {settings.max_pending_body_bytes}; "
            f"accepted: at least max_body_bytes = {settings.max_body_bytes}"
        )
    if settings.max_seqs > settings.max_step_tokens:
        raise SettingsError(
            f"max_seqs is {settings.max_seqs}; "
            f"accepted: at most max_step_tokens = {settings.max_step_tokens}"
        )
    _check_runtime_lora(settings)


def _check_runtime_lora(settings: Settings) -> None:
    if not settings.allow_runtime_lora:
        return
    if not settings.admin_api_key:
        raise SettingsError(
            "allow_runtime_lora is on without admin_api_key or admin_api_key_file; accepted: with a"
            " key that only administrators know"
        )
    if settings.lora_root is None or not Path(settings.lora_root).is_dir():
        raise SettingsError(
            f"lora_root is {settings.lora_root}, and allow_runtime_lora is on; accepted: the"
            " directory under which the adapters lie that requests may load"
        )


def raise_file_limit(wanted: int) -> None:
    """Let the process open so many files, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        logger.warning("this process may open %d files; max_connections wants %d", most, wanted)


def warn_of_visible_keys(arguments: Sequence[str]) -> None:
    """Say which keys other users of the machine can read."""
    for flag in map(flag_of, ("api_key", "admin_api_key")):
        if any(argument.partition("=")[0] == flag for argument in arguments):
            logger.warning(
                "%s shows its keys to every user of this machine (ps); use %s-file, or %s",
                *(flag, flag, variable_of(flag.removeprefix("--").replace("-", "_"))),
            )


def _bind(name: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, f"host {name!r}: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound_connections(listener)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        message = f"port {port} on {name} cannot be used: {os.strerror(error.errno or 0)}"
        raise OSError(error.errno, message) from None
    return listener


def bound_connections(listener: socket.socket) -> None:
    """Have the kernel hold little for each connection, and notice clients that are gone for good.

    Without this it takes megabytes of an answer that nobody reads, and megabytes of a request that
    nobody has read yet.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, SILENT_S),
        (socket.TCP_KEEPINTVL, SILENT_S // 4),
        (socket.TCP_KEEPCNT, 4),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Says how far loading is: a bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _progress_lines(name)
        return
    # Imported here because it takes longer than the rest of what a service does before loading.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("loading {task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _progress_lines(name: str) -> Callable[[int, int], None]:
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_LINE_S or done == total:
            last = now
            logger.info(
                "loading %s: %.0f %% of %s", name, 100 * done / total, host.format_size(total)
            )

    return show
