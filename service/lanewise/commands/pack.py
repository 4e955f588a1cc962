"""``lanewise pack``: writes a model as memory holds it, so that it loads at once."""

from contextlib import ExitStack
from pathlib import Path

from lanewise.commands.opening import load_model, load_tower, mmproj_of, threads_of
from lanewise.host import format_size
from lanewise.loading.base.checkpoint import Tensor
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
    mmproj = mmproj_of(settings)
    sees = not settings.text_only
    with (
        open_checkpoint(path, mtp=None, mmproj=mmproj, tower=sees) as checkpoint,
        ExitStack() as stack,
    ):
        model = stack.enter_context(load_model(checkpoint, settings, threads_of(settings)))
        tensors = [model.packed(tensor) for tensor in checkpoint.tensors]
        of_tower: list[Tensor] = []
        what = model.weights
        if checkpoint.tower is not None:
            threads = threads_of(settings)
            tower = stack.enter_context(
                load_tower(checkpoint.tower, settings, threads, settings.isa)
            )
            of_tower = [tower.packed(tensor) for tensor in checkpoint.tower.tensors]
            what += f", and what reads pictures of {tower.weights},"
        elif settings.tower_weights is not None:
            raise SettingsError("--tower-weights: this model reads text only; accepted: none")
        size = write_packed(folder, checkpoint, tensors, model.info.isa, of_tower)
        print(f"{folder}: {format_size(size)} of {what} for {model.info.isa}")
