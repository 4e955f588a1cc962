"""``lanewise pull``: downloads a model from the hub and prints where it lies."""

from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.settings import PullSettings, SettingsError


def run(settings: PullSettings) -> None:
    """Print the path of the model, after fetching what of it is not here yet."""
    if settings.model is None:
        raise SettingsError("MODEL: not given; accepted: org/name or org/name:file.gguf of the hub")
    print(resolve_model(settings.model))
