"""Reading what anybody may have written: bounded, and whatever is wrong with it is one error.

Text of annotations, logs and messages of pods comes from people whose mistakes, or wishes, must not end what reads it:
``json.loads`` makes infinity of ``1e999``, and a later ``int`` of that an OverflowError that nobody expects.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

LONGEST_CHARS = 256 << 10
"""All annotations of one object together are no longer (Kubernetes' TotalAnnotationSizeLimitB)."""
DEEPEST = 32
LARGEST = 2**53 - 1
"""What every JSON reader keeps exactly (RFC 8259, section 6)."""
_LATEST_S = 253_402_300_799.0
"""The last second of the year 9999: what ``datetime`` can write again."""
_DECIMAL = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?")


class UnreadableError(ValueError):
    """Text that is not what it should be; the message says what is wrong with it."""


def decode(text: object, *, longest_chars: int = LONGEST_CHARS, deepest: int = DEEPEST) -> Any:
    """The JSON of a text. Raises UnreadableError for what is no JSON, too long, nested too deep, or holds a number
    that is not finite or a whole number beyond 2**53, or half of a surrogate pair, which nobody could write again."""
    if not isinstance(text, str):
        raise UnreadableError(f"{type(text).__name__} instead of text")
    if len(text) > longest_chars:
        raise UnreadableError(f"{len(text)} characters; at most {longest_chars} are read")
    try:
        document = json.loads(text, parse_constant=_constant, parse_float=_finite, parse_int=_whole)
        _check(document, deepest)
    except UnreadableError:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"not JSON ({type(error).__name__}: {str(error)[:100]})") from None
    return document


def decode_mapping(text: object, *, longest_chars: int = LONGEST_CHARS, deepest: int = DEEPEST) -> dict[str, Any]:
    """As ``decode``; raises UnreadableError for what is no JSON object, too."""
    document = decode(text, longest_chars=longest_chars, deepest=deepest)
    if not isinstance(document, dict):
        raise UnreadableError(f"{_quoted(document)} instead of a JSON object")
    return document


def salvage(text: object, *, longest_chars: int = LONGEST_CHARS) -> dict[str, Any]:
    """The JSON object of a text, nested as deep as it is and with null for numbers that ``decode`` refuses: for records
    that have to be honoured if they can be read at all. Raises UnreadableError for what is no JSON object."""
    if not isinstance(text, str) or len(text) > longest_chars:
        return decode_mapping(text, longest_chars=longest_chars)
    try:
        document = json.loads(text, parse_constant=_none, parse_float=_finite_or_none, parse_int=_whole_or_none)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"not JSON ({type(error).__name__}: {str(error)[:100]})") from None
    if not isinstance(document, dict):
        raise UnreadableError(f"{_quoted(document)} instead of a JSON object")
    return document


def whole(document: Mapping[str, Any], name: str, low: int = 0, high: int = LARGEST) -> int:
    """The whole number under a name. Raises UnreadableError where there is none from ``low`` to ``high``."""
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UnreadableError(f"{name}: {_quoted(value)} is no whole number from {low} to {high}")
    return value


def number(document: Mapping[str, Any], name: str, low: float = 0.0, high: float = _LATEST_S) -> float:
    """The number under a name. Raises UnreadableError where there is none from ``low`` to ``high``."""
    value = document.get(name)
    # NaN is not between anything.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UnreadableError(f"{name}: {_quoted(value)} is no number from {low:g} to {high:g}")
    return float(value)


def word(document: Mapping[str, Any], name: str, longest_chars: int = 1024) -> str:
    """The text under a name. Raises UnreadableError where there is none, or a longer one."""
    value = document.get(name)
    if not isinstance(value, str) or len(value) > longest_chars:
        raise UnreadableError(f"{name}: {_quoted(value)} is no text of at most {longest_chars} characters")
    return value


def decimal(text: str, low: float = 0.0, high: float = LARGEST) -> float:
    """A number that stands as text. Raises UnreadableError for what is none from ``low`` to ``high``, written plainly:
    no infinity, no underscores, no hundreds of digits."""
    value = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not low <= value <= high:
        raise UnreadableError(f"{_quoted(text)} is no number from {low:g} to {high:g}")
    return value


def unix_time(text: object) -> float:
    """RFC 3339 as Unix seconds. Raises UnreadableError for what is no time from 1970 to 9999."""
    try:
        at_s = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if isinstance(text, str) else math.nan
    except (ValueError, OverflowError, OSError):
        at_s = math.nan
    if not 0 <= at_s <= _LATEST_S:
        raise UnreadableError(f"{_quoted(text)} is no time such as 2026-11-23T12:00:00Z")
    return at_s


def printable(text: str, longest_chars: int) -> str:
    """One line of a text, for events and logs: cut, without control characters and halves of surrogate pairs."""
    clean = text[:longest_chars].encode(errors="replace").decode()
    return "".join(letter if letter.isprintable() else " " for letter in clean)


def _quoted(value: object) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        text = type(value).__name__
    return repr(printable(text, 60))


def _constant(text: str) -> None:
    raise UnreadableError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UnreadableError(f"{text[:40]} is no finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > LARGEST:
        raise UnreadableError(f"{text[:40]} is beyond 2**53")
    return int(text)


def _none(_: str) -> None:
    return None


def _finite_or_none(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole_or_none(text: str) -> int | None:
    return int(text) if len(text) <= 17 and abs(int(text)) <= LARGEST else None


def _check(document: Any, deepest: int) -> None:
    level = [document]
    for _ in range(deepest + 1):
        if not level:
            return
        level = [inner for item in level for inner in _inner(item)]
    raise UnreadableError(f"nested deeper than {deepest}")


def _inner(value: Any) -> list[Any]:
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError, a ValueError, for half of a surrogate pair
        return []
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []
