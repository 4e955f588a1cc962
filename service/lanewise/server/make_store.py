"""Opens the store that the settings name, for the model that is served."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from lanewise import __version__
from lanewise.loading.checkpoints.small_model import cache_folder
from lanewise.runtime import Model
from lanewise.settings import Settings, store_secret
from lanewise.store.block_files import BlockFiles
from lanewise.store.bucket import Bucket
from lanewise.store.fingerprint import content_digest
from lanewise.store.sealing import AesSeal
from lanewise.store.tiers import TieredFiles

logger = logging.getLogger(__name__)


def store_opener(
    settings: Settings, model: Model, kv_type: str, n_snapshots: int | None
) -> Callable[[], BlockFiles | TieredFiles] | None:
    """A call that opens the store, which may take seconds; None where there is none."""
    if settings.kv_store is None:
        return None
    if not settings.prefix_cache:
        logger.warning("kv_store is of no use: prefix_cache is off")
        return None
    if n_snapshots == 0:
        logger.warning("kv_store is of no use: there is no memory for snapshots of states")
        return None
    root, secret = Path(settings.kv_store).absolute(), store_secret(settings)

    def open_store() -> BlockFiles | TieredFiles:
        near = BlockFiles(
            root,
            _fingerprint(model, kv_type),
            most_bytes=settings.kv_store_bytes,
            secret=secret,
            seal=AesSeal(secret) if settings.kv_store_encrypt else None,
            about={"model": model.name, "weights": model.weights, "kv_cache_dtype": kv_type},
        )
        if settings.kv_store_remote is None:
            return near
        return TieredFiles(near, Bucket(settings.kv_store_remote))

    return open_store


def _fingerprint(model: Model, kv_type: str) -> bytes:
    """All that keys and values depend on but their tokens: no CPU, thread or batch."""
    parts = [__version__, str(model.info.numerics), model.parts, kv_type]
    for one in (model, model.tower):  # rows of pictures are made by the other
        if one is not None:
            content = content_digest(one.files, cache_folder())
            parts += [one.weights, repr(one.config), content]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} {part}\n".encode())
    return digest.digest()
