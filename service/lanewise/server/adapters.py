"""The LoRA adapters that the settings name, and the memory that all may come to take."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lanewise import host
from lanewise.engine.base.adapters import AdapterError, AdapterFileError, Adapters
from lanewise.loading.adapters.lora import largest_adapter_bytes, open_adapter
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.runtime import Adapter, Model, NativeError
from lanewise.server.names import names_of
from lanewise.settings import Settings, SettingsError

logger = logging.getLogger(__name__)


def make_adapters(settings: Settings, model: Model) -> Adapters | None:
    """The adapters that the settings name; None when there will never be any."""
    if not settings.lora and not settings.allow_runtime_lora:
        return None
    check_adapters(settings, names_of(settings, model))

    def load(path: str) -> Adapter:
        try:
            files = open_adapter(Path(path).expanduser(), model.config, settings.max_lora_rank)
            try:
                return Adapter.load(model, files)
            finally:
                files.close()
        except (ModelFileError, NativeError, OSError, ValueError) as error:
            raise AdapterFileError(str(error)) from error

    adapters = Adapters(load, settings.max_loras)
    for name, path in settings.lora:
        try:
            loaded = adapters.load(name, path)
        except AdapterError as error:
            raise SettingsError(f"lora: {error}") from error
        size = host.format_size(loaded.weights.n_bytes)
        logger.info("adapter %s: rank %d, %s, %s", name, loaded.weights.rank, size, path)
    return adapters


def check_adapters(settings: Settings, names: Sequence[str]) -> None:
    """Refuse adapters that are too many, or called as the model is."""
    if len(settings.lora) > settings.max_loras:
        raise SettingsError(
            f"lora has {len(settings.lora)} adapters; accepted: at most max_loras ="
            f" {settings.max_loras}"
        )
    for name, _ in settings.lora:
        if name in names:
            raise SettingsError(
                f"lora: {name!r} is a name of the served model; accepted: any but"
                f" {', '.join(names)}"
            )


def adapter_bytes(settings: Settings, model: Model, adapters: Adapters | None) -> int:
    """Memory of adapters: of those that are there, and of those that requests may load."""
    if adapters is None:
        return 0
    there = [adapter.weights.n_bytes for adapter in adapters.all()]
    more = settings.max_loras - len(there) if settings.allow_runtime_lora else 0
    return sum(there) + more * largest_adapter_bytes(model.config, settings.max_lora_rank)
