"""What endpoints answer that keep files."""

from lanewise.api.openapi.answers import Answer
from lanewise.api.openapi.shapes import (
    ANY,
    COUNT,
    FLAG,
    TEXT,
    Schema,
    always,
    array,
    mapping,
    one_of,
    or_null,
    record,
)

BYTES = Answer(TEXT, whole_type="application/octet-stream")
FILE = record(
    {
        "id": TEXT,
        "object": always("file"),
        "bytes": COUNT,
        "created_at": COUNT,
        "expires_at": or_null(COUNT),
        "filename": TEXT,
        "purpose": TEXT,
        "status": TEXT,
    }
)


def page_of(item: Schema) -> Schema:
    """A part of a list."""
    return record(
        {
            "object": always("list"),
            "data": array(item),
            "first_id": or_null(TEXT),
            "last_id": or_null(TEXT),
            "has_more": FLAG,
        }
    )


FILES = page_of(FILE)
USAGE = record(
    {
        "object": always("list"),
        "data": array(
            record(
                {
                    "day": TEXT,
                    "key": TEXT,
                    "model": TEXT,
                    "requests": COUNT,
                    "prompt_tokens": COUNT,
                    "cached_tokens": COUNT,
                    "completion_tokens": COUNT,
                }
            )
        ),
    }
)
BATCH = record(
    {
        "id": TEXT,
        "object": always("batch"),
        "endpoint": TEXT,
        "errors": or_null(record({"object": always("list"), "data": array(mapping(ANY))})),
        "input_file_id": TEXT,
        "completion_window": TEXT,
        "status": one_of(
            *("validating", "failed", "in_progress", "finalizing", "completed", "expired"),
            *("cancelling", "cancelled"),
        ),
        "output_file_id": or_null(TEXT),
        "error_file_id": or_null(TEXT),
        "created_at": COUNT,
        "in_progress_at": or_null(COUNT),
        "expires_at": COUNT,
        "finalizing_at": or_null(COUNT),
        "completed_at": or_null(COUNT),
        "failed_at": or_null(COUNT),
        "expired_at": or_null(COUNT),
        "cancelling_at": or_null(COUNT),
        "cancelled_at": or_null(COUNT),
        "request_counts": record({"total": COUNT, "completed": COUNT, "failed": COUNT}),
        "metadata": or_null(mapping(TEXT)),
    }
)
BATCHES = page_of(BATCH)
JSONL = Answer(TEXT, whole_type="application/x-jsonl")
MESSAGE_BATCH = record(
    {
        "id": TEXT,
        "type": always("message_batch"),
        "processing_status": one_of("in_progress", "canceling", "ended"),
        "request_counts": mapping(COUNT),
        "created_at": TEXT,
        "expires_at": TEXT,
        "ended_at": or_null(TEXT),
        "cancel_initiated_at": or_null(TEXT),
        "archived_at": or_null(TEXT),
        "results_url": or_null(TEXT),
    }
)
MESSAGE_BATCHES = record(
    {
        "data": array(MESSAGE_BATCH),
        "has_more": FLAG,
        "first_id": or_null(TEXT),
        "last_id": or_null(TEXT),
    }
)
MESSAGE_BATCH_DELETED = record({"id": TEXT, "type": always("message_batch_deleted")})
