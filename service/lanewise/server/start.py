"""``lanewise serve``: reads the model's files, and gets everything else ready meanwhile.

Python's part of a start, building a tokenizer of 100,000 tokens and importing modules, takes longer
than loading a packed model, and only native code runs beside it. So the order, in ``opening.py``
and ``serve.py``, is: weights load in a thread from the first moment on, while this one makes the
tokenizer and imports the engine; then the model answers its first request while what speaks HTTP
is imported. What only some requests need (``/docs``) is imported by them.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lanewise import host
from lanewise.api.observing.logs import set_up_logging
from lanewise.held import held_within
from lanewise.server.listener import bind, raise_file_limit
from lanewise.server.make_records import open_records
from lanewise.server.opening import Opened, load_opened, open_model
from lanewise.settings import (
    LIMITS,
    Settings,
    SettingsError,
    flag_of,
    store_secret,
    variable_of,
    with_keys_of_files,
)
from lanewise.store.block_files import StoreError
from lanewise.store.bucket import Bucket
from lanewise.store.sealing import AesSeal, SealError

if TYPE_CHECKING:
    from lanewise.runtime import Model
    from lanewise.server.model_text import Text

logger = logging.getLogger(__name__)

OTHER_FILES = 512  # beside connections: the model's, the library's, connections of probes


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the result is the exit status."""
    set_up_logging(settings.log_level, settings.log_format)
    warn_of_visible_keys(sys.argv)
    catalogue = None
    if settings.models is not None or settings.models_dir is not None:
        from lanewise.router.serve import catalogue_of

        catalogue = catalogue_of(settings)
    asked, settings = settings, with_keys_of_files(settings)
    if catalogue is None:
        return _serve(settings, open_model)
    if settings.data_dir is not None:
        raise SettingsError(
            f"data_dir is {settings.data_dir} beside several models; accepted: a data_dir for a"
            " server of one MODEL"
        )
    _check_limits(settings)
    _check(settings)
    raise_file_limit(settings.max_connections + OTHER_FILES)
    # Taken before the model is loaded: who learns after minutes that the port is in use?
    with bind(settings.host, settings.port) as listener:
        from lanewise.router import serve as router

        return router.serve(settings, asked, catalogue, host.memory_limit(), listener)


def _check_limits(settings: Settings) -> None:
    """Of several models each server counts what it answers itself."""
    for name in LIMITS:
        if getattr(settings, name):
            raise SettingsError(
                f"{name} is {getattr(settings, name)} beside several models; accepted: {name} of a"
                " model, among its settings"
            )


def run_opened(settings: Settings, opened: Opened, *, warms_up: bool) -> int:
    """Serve a model whose file is open, in a process of its own, until SIGTERM or SIGINT.

    Unless it ``warms_up``, the first request that comes is the first that the model computes.
    """

    def load(settings: Settings, threads: int, limit: host.MemoryLimit) -> tuple[Model, Text]:
        return load_opened(settings, opened, threads, limit)

    return _serve(with_keys_of_files(settings), load, warms_up=warms_up)


def _serve(
    settings: Settings,
    load: Callable[[Settings, int, host.MemoryLimit], tuple[Model, Text]],
    *,
    warms_up: bool = True,
) -> int:
    _check(settings)
    raise_file_limit(settings.max_connections + OTHER_FILES)
    # Taken before the model is loaded: who learns after minutes that the port is in use?
    with bind(settings.host, settings.port) as listener, ExitStack() as opened:
        records = open_records(settings)
        if records is not None:
            opened.callback(records.close)
        threads = settings.threads or host.default_threads().threads
        limit = host.memory_limit()
        settings = within_memory(settings, limit)
        model, text = load(settings, threads, limit)
        from lanewise.server import serve

        return serve.serve(
            *(settings, model, text, threads, limit, listener),
            records=records,
            warms_up=warms_up,
        )


def within_memory(settings: Settings, limit: host.MemoryLimit) -> Settings:
    """The settings with what requests may hold on this machine; what is lowered is said."""
    held = held_within(
        limit,
        requests=settings.request_memory,
        grammars=settings.grammar_cache_memory,
        responses=settings.response_store_bytes,
        body=settings.max_body_bytes,
    )
    for name, now in (
        ("grammar_cache_memory", held.grammars),
        ("response_store_bytes", held.responses),
    ):
        if now < (asked := getattr(settings, name)):
            logger.warning(
                "%s is lowered from %s to %s: there are %s in all (%s)",
                *(name, host.format_size(asked), host.format_size(now)),
                *(host.format_size(limit.n_bytes), limit.reason),
            )
    return replace(
        settings,
        request_memory=held.requests,
        grammar_cache_memory=held.grammars,
        response_store_bytes=held.responses,
    )


def _check(settings: Settings) -> None:
    if settings.request_memory is not None and settings.request_memory < settings.max_body_bytes:
        raise SettingsError(
            f"request_memory is {settings.request_memory}; "
            f"accepted: at least max_body_bytes = {settings.max_body_bytes}"
        )
    if settings.max_seqs > settings.max_step_tokens:
        raise SettingsError(
            f"max_seqs is {settings.max_seqs}; "
            f"accepted: at most max_step_tokens = {settings.max_step_tokens}"
        )
    _check_runtime_lora(settings)
    _check_store(settings)
    _check_receipts(settings)


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


def _check_receipts(settings: Settings) -> None:
    if settings.receipts is not None:
        from lanewise.server.make_issuer import signer_of

        signer_of(settings)


def _check_store(settings: Settings) -> None:
    secret = store_secret(settings)
    if settings.kv_store_encrypt:
        if not secret:
            raise SettingsError(
                "kv_store_encrypt is on without kv_store_key_file; accepted: with a file that has"
                " the secret"
            )
        try:
            AesSeal(secret)
        except SealError as error:
            raise SettingsError(str(error)) from None
    if settings.kv_store is None:
        if settings.kv_store_remote is not None:
            raise SettingsError(
                "kv_store_remote is set without kv_store; accepted: with a directory in front of it"
            )
        return
    if settings.kv_store_remote is not None:
        try:
            Bucket(settings.kv_store_remote)
        except StoreError as error:
            raise SettingsError(str(error)) from None
    try:
        Path(settings.kv_store).mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=settings.kv_store).close()
    except OSError as error:
        raise SettingsError(
            f"kv_store is {settings.kv_store}: {error.strerror}; accepted: a directory in which"
            " the server may write"
        ) from None


def warn_of_visible_keys(arguments: Sequence[str]) -> None:
    """Say which keys other users of the machine can read."""
    for flag in map(flag_of, ("api_key", "admin_api_key")):
        if any(argument.partition("=")[0] == flag for argument in arguments):
            logger.warning(
                "%s shows its keys to every user of this machine (ps); use %s-file, or %s",
                *(flag, flag, variable_of(flag.removeprefix("--").replace("-", "_"))),
            )
