"""What the served model is called."""

from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.runtime import Model
from lanewise.settings import Settings


def names_of(settings: Settings, model: Model | Checkpoint) -> tuple[str, ...]:
    """Every name that requests may call the model, each once; the first is in metrics."""
    return tuple(dict.fromkeys(settings.served_model_name)) or (model.name,)
