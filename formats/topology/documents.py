"""JSON as tools print it: one document, with messages around it."""

import json
import re
from dataclasses import dataclass
from typing import Any

from kopt.formats.topology.text import FormatError, Source

_OPENING = re.compile(r"\s*(?:\{\s*(?:$|\"|\})|\[\s*(?:$|[\[{\"\]]))")
_MESSAGE = re.compile(r"\s*(?:$|#|WARN|ERROR|INFO|NOTE|[$%>] |[\w.-]+@[\w.-]+[:$ ])", re.IGNORECASE)


@dataclass(frozen=True)
class Document:
    """The decoded value and the line on which it begins."""

    value: Any
    line: int

    def error(self, message: str) -> FormatError:
        return FormatError(message, self.line)


def looks_like(source: Source) -> bool:
    """Is the first line that is no message one that opens a JSON document?"""
    first = next((line for line in source.lines if line and not _MESSAGE.match(line.text)), None)
    return first is not None and bool(_OPENING.match(first.text))


def begins(source: Source) -> bool:
    """Does any line open a JSON document?"""
    return source.has(_OPENING)


def decode(source: Source) -> Document:
    """Raises FormatError, also for a key that stands twice and for a second document."""
    start, number = 0, 1
    for number, line in enumerate(source.lines, 1):  # noqa: B007
        if _OPENING.match(line.text):
            start += len(line.text) - len(line.text.lstrip())
            break
        start += len(line.text) + 1
    decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse)
    try:
        value, end = decoder.raw_decode(source.text, start)
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON ({error.msg}); is it cut?", error.lineno, error.colno) from error
    except FormatError as error:
        raise FormatError(str(error), number) from error
    except ValueError as error:
        raise FormatError("a number in it has too many digits", number) from error
    except RecursionError as error:
        raise FormatError("JSON that is nested too deeply", number) from error
    rest = source.text[end:].lstrip()
    if rest[:1] in tuple('}],:"{['):
        raise FormatError("more follows behind the JSON document; give one output", source.line_at(end))
    return Document(value, number)


def text_of(value: Any) -> str:
    """A string as it stands; empty for what a tool does not know, and for what is no string."""
    return value.strip() if isinstance(value, str) and value.strip().upper() not in ("N/A", "UNKNOWN", "NONE") else ""


def whole(value: Any, what: str, line: int = 0, most: int = 1 << 31) -> int | None:
    """A number without sign of a JSON number or string; None for null, N/A and -1. Raises FormatError."""
    if value is None or (isinstance(value, str) and value.strip().upper() in ("N/A", "-1", "NONE")):
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FormatError(f"{what} is {str(value)[:60]!r}, not a whole number", line)
    text = str(value).strip()
    if text == "-1":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > most:
        raise FormatError(f"{what} is {text[:60]!r}, not a whole number", line)
    return int(text)


def _refuse(constant: str) -> float:
    raise FormatError(f"{constant} is no figure")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"the key {twice[:80]!r} stands twice in one object")
    return result
