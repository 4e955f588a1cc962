"""Answers in Anthropic's, Ollama's and llama.cpp's words."""

from lanewise.api.openapi.shapes import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    always,
    array,
    either,
    mapping,
    one_of,
    or_null,
    record,
)

# Anthropic's.
BLOCK = either(
    record({"type": always("text"), "text": TEXT}),
    record({"type": always("thinking"), "thinking": TEXT, "signature": TEXT}),
    record({"type": always("tool_use"), "id": TEXT, "name": TEXT, "input": {"type": "object"}}),
)
MESSAGE = record(
    {
        "id": TEXT,
        "type": always("message"),
        "role": always("assistant"),
        "model": TEXT,
        "content": array(BLOCK),
        "stop_reason": or_null(
            one_of(
                *("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
                "model_context_window_exceeded",
            )
        ),
        "stop_sequence": or_null(TEXT),
        "usage": record(
            {
                "input_tokens": COUNT,
                "cache_creation_input_tokens": COUNT,
                "cache_read_input_tokens": COUNT,
                "output_tokens": COUNT,
            }
        ),
    }
)
MESSAGE_EVENT = record(
    {
        "type": one_of(
            *("message_start", "content_block_start", "content_block_delta", "ping", "error"),
            *("content_block_stop", "message_delta", "message_stop"),
        )
    }
)
MESSAGE_TOKENS = record({"input_tokens": COUNT})
MODEL_OF_ANTHROPIC = record(
    {
        "type": always("model"),
        "id": TEXT,
        "display_name": TEXT,
        "created_at": TEXT,
        "max_input_tokens": COUNT,
        "max_tokens": COUNT,
    }
)
MODELS_OF_ANTHROPIC = record(
    {"data": array(MODEL_OF_ANTHROPIC), "has_more": FLAG, "first_id": TEXT, "last_id": TEXT}
)
MESSAGE_ERROR = record({"type": always("error"), "error": record({"type": TEXT, "message": TEXT})})

# Ollama's.
SAID = record(
    {"role": TEXT, "content": TEXT}, {"thinking": TEXT, "tool_calls": array({"type": "object"})}
)
DONE = {
    "done_reason": TEXT,
    "total_duration": COUNT,
    "load_duration": COUNT,
    "prompt_eval_count": COUNT,
    "prompt_eval_duration": COUNT,
    "eval_count": COUNT,
    "eval_duration": COUNT,
}
OLLAMA_CHAT = record({"model": TEXT, "created_at": TEXT, "message": SAID, "done": FLAG}, DONE)
OLLAMA_GENERATE = record(
    {"model": TEXT, "created_at": TEXT, "response": TEXT, "done": FLAG},
    {**DONE, "thinking": TEXT, "context": array(COUNT)},
)
DETAILS = record(
    {"format": TEXT, "family": TEXT, "parameter_size": TEXT, "quantization_level": TEXT}
)
LISTED = record(
    {
        "name": TEXT,
        "model": TEXT,
        "modified_at": TEXT,
        "size": COUNT,
        "digest": TEXT,
        "details": DETAILS,
    }
)
OLLAMA_MODELS = record({"models": array(LISTED)})
OLLAMA_MODEL = record(
    {
        "details": DETAILS,
        "template": TEXT,
        "capabilities": array(TEXT),
        "model_info": {"type": "object"},
        "modified_at": TEXT,
    }
)
OLLAMA_STATUS = record({"status": TEXT})
OLLAMA_ERROR = record({"error": TEXT})

# llama.cpp's.
TIMINGS = mapping(NUMBER)
LLAMA_COMPLETION = record(
    {
        "index": COUNT,
        "content": TEXT,
        "tokens": array(COUNT),
        "stop": FLAG,
        "tokens_predicted": COUNT,
        "tokens_evaluated": COUNT,
    },
    {
        "model": TEXT,
        "prompt": TEXT,
        "stop_type": one_of("none", "eos", "limit", "word"),
        "stopping_word": TEXT,
        "timings": TIMINGS,
        "generation_settings": {"type": "object"},
    },
)
LLAMA_COMPLETIONS = either(LLAMA_COMPLETION, array(LLAMA_COMPLETION))
PROPS = record(
    {
        "default_generation_settings": {"type": "object"},
        "total_slots": COUNT,
        "model_path": TEXT,
        "chat_template": or_null(TEXT),
        "build_info": TEXT,
    }
)
SLOTS = array(record({"id": COUNT, "n_ctx": COUNT, "is_processing": FLAG}))
TEMPLATED = record({"prompt": TEXT})
CONTROLLED = record({"success": FLAG}, {"message": TEXT})
LLAMA_ERROR = record({"error": record({"code": COUNT, "message": TEXT, "type": TEXT})})
