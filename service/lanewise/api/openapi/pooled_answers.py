"""What endpoints of models that are pooled answer, and those that score labels."""

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
    or_null,
    record,
)

USAGE = record(
    {"prompt_tokens": COUNT, "total_tokens": COUNT},
    {"prompt_tokens_details": record({"cached_tokens": COUNT})},
)
ENCODED = {"type": "string", "contentEncoding": "base64"}
VECTOR = array(NUMBER)
LISTED = {"id": TEXT, "object": always("list"), "created": COUNT, "model": TEXT, "usage": USAGE}


def _listed(fields: Schema, more: Schema | None = None, beside: Schema | None = None) -> Schema:
    return record(LISTED | {"data": array(record(fields, more or {}))}, beside or {})


EMBEDDINGS = _listed(
    {"object": always("embedding"), "index": COUNT, "embedding": either(VECTOR, ENCODED)}
)
POOLED = _listed(
    {
        "object": always("pooling"),
        "index": COUNT,
        "data": either(VECTOR, array(VECTOR), ENCODED),
    }
)
IDS = array(COUNT)
SCORES = _listed(
    {"object": always("score"), "index": COUNT, "score": NUMBER},
    {"probability": NUMBER, "token_logprobs": VECTOR, "token_ids": IDS},
    {"prompt_token_ids": IDS},
)
CLASSES = _listed(
    {"index": COUNT, "label": TEXT, "probs": VECTOR, "num_classes": COUNT},
    {
        "labels": array(TEXT),
        "logprobs": VECTOR,
        "input": COUNT,
        "question": either(COUNT, TEXT),
        "prompt_token_ids": IDS,
        "label_token_ids": array(IDS),
    },
)
SHARES = mapping(NUMBER)
CHOSEN = {"choice": TEXT, "probabilities": SHARES, "confidence": NUMBER}
PLACED = {"score": NUMBER, "legend": ANY, "probabilities": SHARES, "confidence": NUMBER}
DECISIONS = record(
    {
        "model": TEXT,
        "answers": mapping(
            either(
                record({"type": always("noul"), "noul": NUMBER}),
                record({"type": always("choice"), **CHOSEN}),
                record({"type": always("score"), **PLACED}),
            )
        ),
        "usage": record(
            {
                "input_tokens": COUNT,
                "output_tokens": COUNT,
                "input_tokens_details": record({"cached_tokens": COUNT}),
            }
        ),
    }
)
RANKED = either(
    record(
        {
            "id": TEXT,
            "object": always("list"),
            "model": TEXT,
            "results": array(
                record(
                    {"index": COUNT, "relevance_score": NUMBER},
                    {"document": record({"text": TEXT})},
                )
            ),
            "usage": USAGE,
            "meta": ANY,
        }
    ),
    array(record({"index": COUNT, "score": NUMBER}, {"text": TEXT})),
)
VECTORS = array(VECTOR)
OLLAMA_VECTORS = record(
    {"model": TEXT, "embeddings": VECTORS, "total_duration": COUNT, "prompt_eval_count": COUNT}
)
OLLAMA_VECTOR = record({"embedding": VECTOR})
LLAMA_VECTORS = array(record({"index": COUNT, "embedding": VECTORS}))
INFO = record(
    {
        "model_id": TEXT,
        "model_sha": or_null(TEXT),
        "model_dtype": TEXT,
        "model_type": ANY,
        "max_concurrent_requests": COUNT,
        "max_input_length": COUNT,
        "max_batch_tokens": COUNT,
        "max_client_batch_size": COUNT,
        "auto_truncate": FLAG,
        "version": TEXT,
    }
)
