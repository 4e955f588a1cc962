"""``lanewise store``: lists, checks, trims or moves the blocks that servers keep in a directory."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lanewise.host import format_size
from lanewise.settings import SettingsError, StoreSettings
from lanewise.store.block_files import ABOUT, StoreError, files_of, is_whole, trim
from lanewise.store.package import export, take_in


def run(settings: StoreSettings) -> int:
    """Print what is in the store, a line for each model; with a size, make it that small first."""
    if settings.kv_store is None:
        raise SettingsError("kv_store: not given; accepted: the directory that serve was given")
    root = Path(settings.kv_store)
    try:
        return _run(settings, root)
    except StoreError as error:
        raise SettingsError(str(error)) from None


def _run(settings: StoreSettings, root: Path) -> int:
    if settings.import_file is not None:
        new, refused = take_in(root, Path(settings.import_file))
        print(f"{new} blocks are new" + (f", {refused} entries are no blocks" if refused else ""))
    if not root.is_dir():
        raise SettingsError(f"kv_store: {root}: no such directory")
    if settings.trim is not None:
        left, removed = trim(root, settings.trim)
        print(f"{removed} blocks removed, {format_size(left)} left")
    if settings.export_file is not None:
        count = export(root, Path(settings.export_file))
        print(f"{count} blocks written to {settings.export_file}")
    spoiled = 0
    for line in _models(root):
        print(line)
    if settings.verify:
        spoiled = sum(_told_spoiled(path) for path in (file.path for file in files_of(root)))
        print(f"{spoiled} blocks are not whole; servers take them for missing")
    return 1 if spoiled else 0


def _models(root: Path) -> Iterator[str]:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files = list(files_of(folder))
        used = max((file.used for file in files), default=0.0)
        size = format_size(sum(file.n_bytes for file in files))
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(used)) if files else "never"
        yield f"{_about(folder)}: {len(files)} blocks, {size}, last used {when}"


def _about(folder: Path) -> str:
    try:
        about = json.loads((folder / ABOUT).read_text())
        return ", ".join(str(about[name]) for name in ("model", "weights", "kv_cache_dtype"))
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name


def _told_spoiled(path: Path) -> bool:
    if is_whole(path):
        return False
    print(f"{path}: not whole", file=sys.stderr)
    return True
