"""What endpoints answer that keep files."""

from lanewise.api.openapi.answers import Answer
from lanewise.api.openapi.shapes import (
    COUNT,
    FLAG,
    TEXT,
    Schema,
    always,
    array,
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
