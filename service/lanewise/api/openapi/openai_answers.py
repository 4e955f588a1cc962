"""Answers in OpenAI's words: chat, completions, responses, models."""

from lanewise.api.openapi.shapes import (
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Schema,
    always,
    array,
    either,
    mapping,
    one_of,
    or_null,
    record,
)

REASON = one_of("stop", "length", "tool_calls")
IDS = array(COUNT)
TOP = record({"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT)})
SCORE = record(
    {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT), "top_logprobs": array(TOP)}
)
CHAT_LOGPROBS = or_null(record({"content": array(SCORE)}))
USAGE = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}, {"image_tokens": COUNT}),
    },
    {
        "completion_tokens_details": record(
            {},
            {
                "reasoning_tokens": COUNT,
                "accepted_prediction_tokens": COUNT,
                "rejected_prediction_tokens": COUNT,
            },
        )
    },
)
FUNCTION = record({"name": TEXT, "arguments": TEXT})
CALL = record({"id": TEXT, "type": one_of("function", "custom")}, {"function": FUNCTION})
REASONING = {"reasoning": TEXT, "reasoning_content": TEXT}
MESSAGE = record(
    {"role": always("assistant"), "content": or_null(TEXT)},
    {"refusal": {"type": "null"}, "tool_calls": array(CALL), **REASONING},
)
DELTA = record(
    {},
    {
        "role": always("assistant"),
        "content": or_null(TEXT),
        "tool_calls": {**array(ANY), "minItems": 1, "maxItems": 1},
        **REASONING,
    },
)
PROMPT_SCORE = record({"logprob": NUMBER, "rank": or_null(COUNT), "decoded_token": TEXT})
PROMPT_SCORES = {"prompt_logprobs": array(or_null(mapping(PROMPT_SCORE)))}

RECEIPT = record(
    {
        "statement": mapping(ANY),
        "prompt_tokens": IDS,
        "answer_tokens": IDS,
        "public_key": TEXT,
        "signature": TEXT,
    }
)
RECEIPTS = {"receipts": array(RECEIPT)}


def _answer(kind: str, choice: Schema, usage: Schema, **more: Schema) -> Schema:
    return record(
        {
            "id": TEXT,
            "object": always(kind),
            "created": COUNT,
            "model": TEXT,
            "choices": array(choice),
            "usage": usage,
        },
        {"system_fingerprint": TEXT, **RECEIPTS, **more},
    )


CHAT = _answer(
    "chat.completion",
    record(
        {"index": COUNT, "message": MESSAGE, "finish_reason": REASON, "logprobs": CHAT_LOGPROBS},
    ),
    USAGE,
    **PROMPT_SCORES,
)
CHAT_CHUNK = record(
    {
        "id": TEXT,
        "object": always("chat.completion.chunk"),
        "created": COUNT,
        "model": TEXT,
        "choices": {
            **array(
                record(
                    {"index": COUNT, "delta": DELTA, "finish_reason": or_null(REASON)},
                    {"logprobs": CHAT_LOGPROBS},
                )
            ),
            "maxItems": 1,
        },
    },
    {"usage": or_null(USAGE), "system_fingerprint": TEXT, **RECEIPTS},
)
LOGPROBS = or_null(
    record(
        {
            "tokens": array(TEXT),
            "token_logprobs": array(or_null(NUMBER)),
            "top_logprobs": or_null(array(or_null(mapping(NUMBER)))),
            "text_offset": array(COUNT),
        }
    )
)
TEXT_CHOICE = {"index": COUNT, "text": TEXT, "logprobs": LOGPROBS}
COMPLETION = _answer(
    "text_completion",
    record({**TEXT_CHOICE, "finish_reason": REASON}, PROMPT_SCORES),
    USAGE,
)
COMPLETION_CHUNK = record(
    {
        "id": TEXT,
        "object": always("text_completion"),
        "created": COUNT,
        "model": TEXT,
        "choices": {
            **array(record({**TEXT_CHOICE, "finish_reason": or_null(REASON)})),
            "maxItems": 1,
        },
    },
    {"usage": or_null(USAGE), "system_fingerprint": TEXT, **RECEIPTS},
)

ITEM = record({"type": TEXT}, {"id": TEXT, "status": TEXT})
RESPONSE = record(
    {
        "id": TEXT,
        "object": always("response"),
        "created_at": NUMBER,
        "status": one_of("completed", "incomplete", "in_progress", "failed"),
        "model": TEXT,
        "output": array(ITEM),
        "parallel_tool_calls": FLAG,
        "tool_choice": either(TEXT, {"type": "object"}),
        "tools": array({"type": "object"}),
        "error": or_null(record({"code": TEXT, "message": TEXT})),
        "incomplete_details": or_null(record({"reason": TEXT})),
        "usage": or_null(
            record(
                {
                    "input_tokens": COUNT,
                    "input_tokens_details": record({"cached_tokens": COUNT}),
                    "output_tokens": COUNT,
                    "output_tokens_details": record({"reasoning_tokens": COUNT}),
                    "total_tokens": COUNT,
                }
            )
        ),
    },
    {"previous_response_id": or_null(TEXT), "metadata": or_null(mapping(TEXT)), **RECEIPTS},
)
RESPONSE_EVENT = record(
    {"type": {"type": "string", "pattern": "^(response\\..+|error)$"}, "sequence_number": COUNT}
)
COMPACTED = record(
    {
        "id": TEXT,
        "object": always("response.compaction"),
        "created_at": COUNT,
        "output": array(ITEM),
        "usage": {"type": "object"},
    }
)
INPUT_TOKENS = record({"object": always("response.input_tokens"), "input_tokens": COUNT})
ITEM_LIST = record(
    {
        "object": always("list"),
        "data": array(ITEM),
        "has_more": FLAG,
    },
    {"first_id": or_null(TEXT), "last_id": or_null(TEXT)},
)
DELETED = record({"id": TEXT, "object": TEXT, "deleted": FLAG})

MODEL = record(
    {
        "id": TEXT,
        "object": always("model"),
        "created": COUNT,
        "owned_by": TEXT,
        "root": TEXT,
        "parent": or_null(TEXT),
        "max_model_len": COUNT,
        "name": TEXT,
        "context_length": COUNT,
        "context_window": COUNT,
        "max_context_length": COUNT,
        "architecture": record(
            {
                "modality": TEXT,
                "input_modalities": array(TEXT),
                "output_modalities": array(TEXT),
            }
        ),
        "top_provider": mapping(COUNT),
        "supported_parameters": array(TEXT),
        "capabilities": mapping(FLAG),
        "meta": mapping(COUNT),
    }
)
MODELS_OF_LM_STUDIO = record(
    {
        "object": always("list"),
        "data": array(
            record(
                {
                    "id": TEXT,
                    "object": always("model"),
                    "type": TEXT,
                    "publisher": TEXT,
                    "arch": TEXT,
                    "compatibility_type": TEXT,
                    "quantization": TEXT,
                    "state": always("loaded"),
                    "max_context_length": COUNT,
                    "loaded_context_length": COUNT,
                    "capabilities": array(TEXT),
                }
            )
        ),
    }
)
MODELS = record({"object": always("list"), "data": array(MODEL)})
# With their texts, in llama.cpp's words, bytes where a token is no text.
PIECE = record({"id": COUNT, "piece": either(TEXT, IDS)})
TOKENS = record(
    {"count": COUNT, "max_model_len": COUNT, "tokens": array(either(COUNT, PIECE))},
    {"token_strs": array(TEXT)},
)
DETOKENIZED = record({"prompt": TEXT, "content": TEXT})
TOKENIZER = record(
    {
        "bos_token": or_null(TEXT),
        "eos_token": or_null(TEXT),
        "pad_token": or_null(TEXT),
        "add_bos_token": FLAG,
        "chat_template": or_null(TEXT),
        "max_model_len": COUNT,
    }
)
STATUS = record({"status": TEXT})
VERSION = record({"version": TEXT})
ERROR = record(
    {
        "error": record(
            {"message": TEXT, "type": TEXT, "param": or_null(TEXT), "code": or_null(TEXT)}
        )
    }
)
