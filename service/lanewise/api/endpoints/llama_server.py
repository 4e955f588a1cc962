"""What clients of llama.cpp's server ask beside answers: its properties, slots and templates."""

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.conversations import AnyTools, Messages, functions_of, left_out
from lanewise.api.dialects.chat_completions import ChatWire
from lanewise.api.dialects.llama_completion import RANDOM_SEED
from lanewise.api.errors import UnavailableError
from lanewise.api.generation.ask import Conversation, ToolUse
from lanewise.api.generation.body import read_request
from lanewise.api.generation.rendering import form_of, render_text
from lanewise.api.generation.writing import dumps
from lanewise.api.observing.caller import caller_of
from lanewise.api.schemas import Strict
from lanewise.api.shared.state import ServerState
from lanewise.engine.engine import Engine
from lanewise.text.control_tokens import remove_mark


class ApplyTemplateRequest(Strict):
    """Body of ``POST /apply-template``."""

    model: str | None = None
    messages: Annotated[Messages, Field(min_length=1)]
    tools: AnyTools = Field(default_factory=list)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


async def apply_template(request: Request, state: ServerState) -> Response:
    """The text that the model would get for a conversation."""

    def check(body: ApplyTemplateRequest) -> None:
        state.request_budgets.check_messages(body.messages)
        state.request_budgets.check_tools(functions_of(body.tools))

    call = await read_request(request, state, ApplyTemplateRequest, check)
    body = call.ask
    chat = Conversation(
        messages=body.messages,
        add_generation_prompt=body.add_generation_prompt,
        variables=body.chat_template_kwargs,
    )
    functions = functions_of(body.tools)
    for notice in left_out(body.tools):
        call.caller.tell(notice)
    tools = ToolUse(listed=functions, callable=functions)
    form = form_of(chat, tools, state)
    text, mark = await render_text(call, chat, tools, form)
    return await state.workers.answer(len(text), lambda: dumps({"prompt": remove_mark(text, mark)}))


class ControlRequest(Strict):
    """Body of ``POST /v1/chat/completions/control``."""

    id: str = Field(description="Of an answer that was asked for with `reasoning_control`.")
    action: Literal["reasoning_end"]
    model: str | None = None


async def control(request: Request, state: ServerState) -> Response:
    """End the reasoning of an answer that is being written: what it says comes next."""
    body = (await read_request(request, state, ControlRequest)).ask
    answer = body.id.removeprefix(ChatWire.id_prefix)
    control = state.thinking_controls.get((caller_of(request.scope).number, answer))
    if control is None:
        message = "no answer that is being written has this id and was asked for with"
        return JSONResponse({"success": False, "message": f"{message} reasoning_control: true"})
    control.has_ended = True
    return JSONResponse({"success": True})


async def props(_: Request, state: ServerState) -> Response:
    """What the server is, and how answers are drawn if requests do not say."""
    defaults, names = state.sampling_defaults, state.tokenizer.special_tokens
    params = {
        "n_predict": -1,
        "seed": RANDOM_SEED,
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [],
        "ignore_eos": False,
        "stream": False,
        "n_probs": 0,
        "grammar": "",
    }
    template = state.chat_template
    shown = {
        "default_generation_settings": {"id": 0, "n_ctx": state.max_model_len, "params": params},
        "total_slots": total_slots(state),
        "model_path": state.model_name,
        "model_alias": state.model_name,
        "chat_template": "" if template is None else template.shown or "",
        "modalities": {"vision": state.eyes is not None, "audio": False},
        "bos_token": names.get("bos_token", ""),
        "eos_token": names.get("eos_token", ""),
        "build_info": f"lanewise-{state.version}",
        "is_sleeping": False,
    }
    return JSONResponse(shown)


def total_slots(state: ServerState) -> int:
    """Sequences that run at once; a model that is pooled runs a step of texts at a time."""
    return state.engine.config.max_seqs if isinstance(state.engine, Engine) else 1


async def slots(request: Request, state: ServerState) -> Response:
    """How many sequences run at once and how many do now; not what they say."""
    config, running = state.generator.config, int(state.engine.metrics.load().running)
    if "fail_on_no_slot" in request.query_params and running >= config.max_seqs:
        raise UnavailableError("no slot is free", headers={"retry-after": "1"})
    shown = {"id_task": -1, "n_ctx": state.max_model_len, "speculative": config.max_draft > 0}
    return JSONResponse(
        [{"id": i, **shown, "is_processing": i < running} for i in range(config.max_seqs)]
    )
