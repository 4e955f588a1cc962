"""``GET /v1/models``: the model that is served, and its adapters."""

from typing import Any

from lanewise.api.endpoints.absent import tasks
from lanewise.api.errors import ModelNotFoundError
from lanewise.api.shared.state import ServerState
from lanewise.engine.adapters import LoadedAdapter
from lanewise.text.pooled_text import PooledText


def list_models(state: ServerState) -> dict[str, Any]:
    """All models: the served one first, by each of its names."""
    adapters = [] if state.adapters is None else state.adapters.all()
    data = [
        *(_model(name, state) for name in state.names),
        *(_adapter(adapter, state) for adapter in adapters),
    ]
    return {"object": "list", "data": data}


def get_model(name: str, state: ServerState) -> dict[str, Any]:
    """One model by its name."""
    adapter = state.adapter_named(name)
    if adapter is not None:
        return _adapter(adapter, state)
    if name not in state.names:
        raise ModelNotFoundError.of(name, state.model_names)
    return _model(name, state)


def _model(name: str, state: ServerState) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "lanewise",
        "root": state.model_name,
        "parent": None,
        "max_model_len": state.max_model_len,
        **({} if state.card.notice is None else {"notice": state.card.notice}),
        **({} if state.pooling is None else _pooled(state.pooling, state)),
    }


def _pooled(pooled: PooledText, state: ServerState) -> dict[str, Any]:
    """What is to be known of a model that is pooled."""
    shown: dict[str, Any] = {
        "supported_tasks": tasks(pooled),
        "dimensions": state.encoder.config.dims,
    }
    if pooled.prompts:
        shown |= {"prompts": dict(pooled.prompts), "default_prompt_name": pooled.default_prompt}
    return shown


def _adapter(adapter: LoadedAdapter, state: ServerState) -> dict[str, Any]:
    return _model(adapter.name, state) | {
        "created": adapter.created,
        "root": adapter.path,
        "parent": state.model_name,
    }
