"""Log lines of controllers: one JSON object each on standard error, for whatever collects them."""

import logging
import sys
from typing import Any

import orjson


class JsonLines(logging.Formatter):
    """Time, level, logger and message; a record's ``decision`` and its exception beside them."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at_s": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (decision := getattr(record, "decision", None)) is not None:
            line["decision"] = decision
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send everything from ``level`` on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # A line for each request to the endpoint is of no use.
    logging.getLogger("httpx").setLevel(max(level, logging.WARNING))
