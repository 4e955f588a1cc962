"""What can be refused before weights are read: loading them may take minutes."""

from pathlib import Path

from lanewise import host
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_name
from lanewise.server.adapters import check_adapters
from lanewise.server.make_engine import check_cache, check_context
from lanewise.server.names import names_of
from lanewise.settings import Settings, SettingsError


def check_first(settings: Settings, checkpoint: Checkpoint, limit: host.MemoryLimit) -> None:
    """Refuse settings that this model cannot have; its header and those of other files will do."""
    if checkpoint.config.pooling is not None:
        return
    check_context(settings, checkpoint.config.context_length)
    check_adapters(settings, names_of(settings, checkpoint))
    for _, path in settings.lora:
        try:
            folder = Path(path).expanduser()
            open_adapter(folder, checkpoint.config, settings.max_lora_rank).close()
        except (ModelFileError, OSError, ValueError) as error:
            raise SettingsError(f"lora: {error}") from error
    small = None
    if settings.speculation:
        try:
            small = read_draft(settings.draft).model
            if small is not None:
                open_checkpoint(small).close()
        except ModelFileError as error:
            raise SettingsError(f"draft: {error}") from error
    if settings.kv_memory is not None:  # which alone decides: what weights take is not known yet
        kv_type = resolve_kv_type(settings.kv_cache_dtype, held_name(checkpoint, settings.weights))
        with Model(checkpoint, isa=None, threads=1) as model:  # nothing is loaded into it
            layout = model.kv_layout(kv_type, groups_by_window=small is None)
        check_cache(settings, layout, checkpoint.config.context_length, limit)
