"""``lanewise pack``: writes a model as memory holds it, so that it loads at once."""

from pathlib import Path

from lanewise.commands.opening import load_model, threads_of
from lanewise.host import format_size
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.writing.packed_writer import check_folder, write_packed
from lanewise.settings import PackSettings, SettingsError


def run(settings: PackSettings) -> None:
    """Pack the model and write the directory."""
    if settings.output is None:
        raise SettingsError("--output: not given; accepted: a directory that is new or empty")
    folder = Path(settings.output).expanduser()
    check_folder(folder)  # before minutes of packing
    path = resolve_model(settings.model)
    with open_checkpoint(path, mtp=None, tower=not settings.text_only) as checkpoint:
        if checkpoint.tower is not None:
            raise ModelFileError(
                f"{path}: the part that reads pictures cannot be packed yet; --text-only packs the"
                " language model without it"
            )
        with load_model(checkpoint, settings, threads_of(settings)) as model:
            tensors = [model.packed(tensor) for tensor in checkpoint.tensors]
            size = write_packed(folder, checkpoint, tensors, model.info.isa)
            print(f"{folder}: {format_size(size)} of {model.weights} for {model.info.isa}")
