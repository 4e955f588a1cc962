"""``GET /v1/models``: the one model that is served."""

from typing import Any

from lanewise.api.errors import ModelNotFoundError
from lanewise.api.state import ServerState


def list_models(state: ServerState) -> dict[str, Any]:
    """All models, which is one."""
    return {"object": "list", "data": [_model(state)]}


def get_model(name: str, state: ServerState) -> dict[str, Any]:
    """One model by its name."""
    if name != state.model_name:
        raise ModelNotFoundError(
            f"the model {name!r} is not here; this server has {state.model_name!r}", param="model"
        )
    return _model(state)


def _model(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "lanewise",
        "root": state.model_name,
        "parent": None,
        "max_model_len": state.max_model_len,
    }
