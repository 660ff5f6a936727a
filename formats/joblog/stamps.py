"""Times in log lines: ISO 8601, US and European dates, glog, syslog, asctime, Unix seconds, times of day.

Seconds are those of the log's own clock, taken as UTC where no zone is told: lines of one log are compared with others
of it.
"""

import calendar
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache

DAY_S = 86400.0
# No stamp stands behind this: a line that long is data, or a bar with a message behind it.
_LOOKED_AT = 400


class Precision(Enum):
    """What a stamp does not tell: nothing, its year (then 2000 is taken) or its day (then 1970-01-01 is)."""

    FULL = "full"
    NO_YEAR = "no year"
    NO_DAY = "no day"


@dataclass(frozen=True, slots=True)
class Stamp:
    """``at_s``: seconds since 1970 as far as ``precision`` goes; ``start`` and ``end``: where it stands in the text."""

    at_s: float
    precision: Precision
    start: int
    end: int


_MONTHS = {name[:3]: number for number, name in enumerate(calendar.month_abbr) if name}
_NAMES = f"({'|'.join(_MONTHS)})[a-z]*"
_CLOCK = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
_ZONE = r"(?: ?(Z|UTC|[+-]\d\d:?\d\d)(?![\d:]))?"


@lru_cache(maxsize=4096)
def _midnight(year: int, month: int, day: int) -> float | None:
    """Logs hardly ever leave their day, so days are looked up."""
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _seconds(date: float | None, clock: tuple[str | None, ...], zone: str | None = None) -> float | None:
    hour, minute, second = int(clock[0] or 0), int(clock[1] or 0), int(clock[2] or 0)
    # Leap seconds are written as 60.
    if date is None or hour > 23 or minute > 59 or second > 60:
        return None
    fraction = float(f"0.{clock[3]}") if clock[3] else 0.0
    return date + hour * 3600 + minute * 60 + second + fraction - _offset(zone)


def _offset(zone: str | None) -> float:
    if not zone or zone in ("Z", "UTC"):
        return 0.0
    digits = zone[1:].replace(":", "")
    return (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1.0 if zone[0] == "-" else 1.0)


def _year_first(match: re.Match[str]) -> float | None:
    year, _, month, day, *clock, zone = match.groups()
    return _seconds(_midnight(int(year), int(month), int(day)), tuple(clock), zone)


def _year_last(match: re.Match[str]) -> float | None:
    """``10/20/2023`` and ``20/10/23``: the month stands first unless it cannot."""
    first, second, year, *clock = match.groups()
    month, day = (int(second), int(first)) if int(first) > 12 else (int(first), int(second))
    full = int(year) + (2000 if len(year) == 2 else 0)
    return _seconds(_midnight(full, month, day), tuple(clock))


def _yearless(match: re.Match[str]) -> float | None:
    month, day, *clock = match.groups()
    return _seconds(_midnight(2000, int(month), int(day)), tuple(clock))


def _named(match: re.Match[str]) -> float | None:
    month, day, early, *clock, late = match.groups()
    return _seconds(_midnight(int(early or late or 2000), _MONTHS[month], int(day)), tuple(clock))


def _day_named(match: re.Match[str]) -> float | None:
    day, month, year, *clock = match.groups()
    return _seconds(_midnight(int(year), _MONTHS[month], int(day)), tuple(clock))


_Reader = Callable[[re.Match[str]], float | None]
_STYLES: tuple[tuple[re.Pattern[str], _Reader, Precision], ...] = (
    (re.compile(rf"(?<!\d)(\d{{4}})([-/.])(\d\d)\2(\d\d)[ T_-]{_CLOCK}{_ZONE}"), _year_first, Precision.FULL),
    (re.compile(rf"(?<!\d)(\d\d)/(\d\d)/(\d{{4}}|\d\d),? {_CLOCK}"), _year_last, Precision.FULL),
    (re.compile(rf"(?:\b[IWEFD]|\[)(\d\d)(\d\d) {_CLOCK}"), _yearless, Precision.NO_YEAR),
    (re.compile(rf"(?<![\d/.-])(\d\d)[/-](\d\d) {_CLOCK}"), _yearless, Precision.NO_YEAR),
    (
        re.compile(rf"\b{_NAMES}\s{{1,2}}(\d{{1,2}}),?\s(?:(\d{{4}})\s)?{_CLOCK}(?: [A-Z]{{3,4}})?(?: (\d{{4}}))?"),
        _named,
        Precision.FULL,
    ),
    (re.compile(rf"(?<!\d)(\d{{1,2}})[ /-]{_NAMES}[ /-](\d{{4}})[ :]{_CLOCK}"), _day_named, Precision.FULL),
)
# A colon first: what begins with a letter of its own is found much quicker.
_HAS_CLOCK = re.compile(r":(?<=\d\d:)\d\d:\d\d")
_AT_START = re.compile(rf"\W{{0,2}}{_CLOCK}(?![\d<:/%])")
_UNIX = re.compile(r"\W?(1\d{9}\.\d{1,9}|1[4-9]\d{8})\b(?!\s*[/|%])")


def find_stamp(text: str) -> Stamp | None:
    """The first date with a time in a line, else a time of day or Unix seconds at its very start; None without any.

    >>> find_stamp("[2025-10-28 20:50:29,617] [INFO] step=81").at_s - find_stamp("10/28/2025 20:50:29 step 80").at_s
    0.617...
    """
    clock = _HAS_CLOCK.search(text, 0, _LOOKED_AT)
    if clock is None:
        seconds = _UNIX.match(text)
        return Stamp(float(seconds[1]), Precision.FULL, seconds.start(), seconds.end()) if seconds else None
    # Bars may show durations before the message's date follows.
    for pattern, read, precision in _STYLES:
        match = pattern.search(text, max(0, clock.start() - 32), _LOOKED_AT)
        at_s = read(match) if match else None
        if match and at_s is not None:
            yearless = read is _named and not (match[3] or match[8])
            return Stamp(at_s, Precision.NO_YEAR if yearless else precision, match.start(), match.end())
    match = _AT_START.match(text)
    at_s = _seconds(0.0, match.groups()) if match else None
    return Stamp(at_s, Precision.NO_DAY, match.start(), match.end()) if match and at_s is not None else None
