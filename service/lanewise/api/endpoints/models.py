"""``GET /v1/models``: the model that is served, its adapters, and what agents look for in both."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.endpoints.absent import tasks
from lanewise.api.endpoints.ollama_models import capabilities
from lanewise.api.errors import ModelNotFoundError
from lanewise.api.generation.writing import utc_time
from lanewise.api.shared.state import ServerState
from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.text.pooled_text import PooledText

# What chats may ask for, in OpenRouter's words.
PARAMETERS = (
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "seed", "stop"),
    *("logprobs", "top_logprobs", "response_format", "structured_outputs"),
)
REASONS = ("reasoning", "include_reasoning", "reasoning_effort")
CALLS = ("tools", "tool_choice", "parallel_tool_calls")


ANTHROPIC = "anthropic-version"  # a header that Anthropic's clients alone send


async def list_models(request: Request, state: ServerState) -> Response:
    """The served model and its adapters."""
    # The served one first, by each of its names.
    if ANTHROPIC not in request.headers:
        data = [_named(name, state) for name in state.model_names]
        return JSONResponse({"object": "list", "data": data})
    data = [_of_anthropic(name, state) for name in state.model_names]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return JSONResponse({"data": data, "has_more": False, **ends})


async def get_model(request: Request, state: ServerState) -> Response:
    """The served model, if that is its name."""
    name = request.path_params["name"]
    if name not in state.model_names:
        raise ModelNotFoundError.of(name, state.model_names)
    write = _of_anthropic if ANTHROPIC in request.headers else _named
    return JSONResponse(write(name, state))


def _of_anthropic(name: str, state: ServerState) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": utc_time(_named(name, state)["created"]),
        "max_input_tokens": state.max_model_len,
        "max_tokens": state.max_model_len,
    }


async def list_lm_studio(_: Request, state: ServerState) -> Response:
    """The same, as clients of LM Studio read it."""
    card, pooling = state.card, state.pooling
    can = ["tool_use"] if "tools" in capabilities(state) else []
    same = {
        "object": "model",
        "type": "llm" if pooling is None else "embeddings",
        "publisher": "lanewise",
        "arch": card.architecture,
        "compatibility_type": "gguf",
        "quantization": state.engine.metrics.facts.weights.upper(),
        "state": "loaded",
        "max_context_length": state.max_model_len,
        "loaded_context_length": state.max_model_len,
        "capabilities": can,
    }
    data = [{"id": name} | same for name in state.model_names]
    return JSONResponse({"object": "list", "data": data})


def _named(name: str, state: ServerState) -> dict[str, Any]:
    adapter = state.adapter_named(name)
    return _model(name, state) if adapter is None else _adapter(adapter, state)


def _model(name: str, state: ServerState) -> dict[str, Any]:
    context = state.max_model_len
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "lanewise",
        "root": state.model_name,
        "parent": None,
        "max_model_len": context,
        **({} if state.card.notice is None else {"notice": state.card.notice}),
        **({} if state.pooling is None else _pooled(state.pooling, state)),
        **_for_agents(name, state),
    }


def _for_agents(name: str, state: ServerState) -> dict[str, Any]:
    """What clients of OpenRouter, Mistral and llama.cpp ask a catalogue for."""
    context, can = state.max_model_len, capabilities(state)
    parameters = [
        *(PARAMETERS if "completion" in can else ()),
        *(CALLS if "tools" in can else ()),
        *(REASONS if "thinking" in can else ()),
    ]
    sees = "vision" in can
    writes = "embeddings" if state.pooling is not None else "text"
    return {
        "name": name,
        "context_length": context,
        "context_window": context,
        "max_context_length": context,
        "architecture": {
            "modality": f"{'text+image' if sees else 'text'}->{writes}",
            "input_modalities": ["text", "image"] if sees else ["text"],
            "output_modalities": [writes],
        },
        "top_provider": {"context_length": context, "max_completion_tokens": context},
        "supported_parameters": parameters,
        "capabilities": {
            "completion_chat": "tools" in can,
            "completion_fim": "insert" in can,
            "function_calling": "tools" in can,
            "reasoning": "thinking" in can,
            "vision": sees,
        },
        "meta": {
            "n_vocab": state.tokenizer.vocab_size,
            "n_ctx": context,
            "n_ctx_train": context,
            "n_params": state.card.n_weights,
            "size": state.card.n_bytes,
        },
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
