"""Log lines: text for people, JSON for machines. A record is one line, whatever clients sent."""

import json
import logging
import sys
import time
from collections.abc import Callable

from lanewise.told import shortened, told

TRACEBACK_INDENT = "  "


class TextFormatter(logging.Formatter):
    """One line for each record; a traceback follows it, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without what could end it early or move a terminal's cursor."""
        record.message = told(record.getMessage())
        record.asctime = self.formatTime(record)
        lines = [self.formatMessage(record)]
        if record.exc_info:
            trace = self.formatException(record.exc_info).split("\n")
            lines += [TRACEBACK_INDENT + line for line in trace]
        return "\n".join(escaped(line, repr) for line in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shortened(record.getMessage()),
        }
        if request_id := getattr(record, "request_id", None):
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # What is left of characters that do not print is in strings, where JSON has escapes.
        return escaped(json.dumps(line, ensure_ascii=False), json.dumps)


def set_up_logging(level: str, form: str) -> None:
    """Send this program's lines to stderr; of others only what goes wrong."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("lanewise").setLevel(level.upper())


def escaped(text: str, quoted: Callable[[str], str]) -> str:
    """The text with what does not print as ``quoted`` has it: it could forge or hide lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else quoted(c)[1:-1] for c in text)
