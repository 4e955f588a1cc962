"""What keys have used, written as CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from lanewise.records.usage import Row


def as_csv(rows: Sequence[Row]) -> str:
    """A line of names, and one for each day, key and model."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows([*map(_plain, row[:3]), *row[3:]] for row in rows)
    return text.getvalue()


def as_objects(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same as objects."""
    return [row._asdict() for row in rows]


def as_json(rows: Sequence[Row]) -> str:
    """The same as a list of objects, one on a line."""
    return "[\n" + ",\n".join(json.dumps(one) for one in as_objects(rows)) + "\n]\n"


def _plain(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
