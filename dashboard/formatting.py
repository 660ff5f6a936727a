"""Numbers, spans and times as people read them."""

import math
import re
from datetime import UTC, datetime

NONE = "–"
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def amount(value: float | None) -> str:
    """Three significant figures: ``0.42``, ``7``, ``1,234``, ``12.3 k``; a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return NONE
    for size, suffix in _SUFFIXES:
        if abs(value) >= size * 0.99995:
            scaled = value / (1e3 if suffix == "k" else size)
            return f"{scaled:,.1f} {suffix}" if abs(scaled) < 100 else f"{scaled:,.0f} {suffix}"
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def decimal(value: float | None) -> str:
    """Three decimals for figures that are compared with each other."""
    return (
        NONE if value is None or not math.isfinite(value) else f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    )


def share(value: float | None, digits: int = 1) -> str:
    """A share as a percentage."""
    return NONE if value is None or not math.isfinite(value) else f"{value * 100:.{digits}f} %"


def span(seconds: float) -> str:
    """``45 s``, ``5 min``, ``3 h``, ``12 days``."""
    for size, word in ((172_800, "days"), (7200, "h"), (120, "min")):
        if seconds >= size:
            unit = {"days": 86_400, "h": 3600, "min": 60}[word]
            return f"{seconds / unit:.0f} {word}"
    return f"{seconds:.0f} s"


def horizon(seconds: float) -> str:
    """A forecast horizon: always minutes below two hours."""
    return f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:g} h"


def quantile(probability: float) -> str:
    """``p99``, ``p99.9``."""
    return f"p{round(probability * 100, 4):g}"


def iso(unix_s: float | None) -> str:
    """ISO 8601 in UTC for ``<time datetime>``; empty for what is no moment of the calendar."""
    try:
        return "" if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def clock(unix_s: float | None) -> str:
    """The same for people, in UTC; the browser rewrites it in the reader's zone."""
    text = iso(unix_s)
    return f"{text[:10]} {text[11:16]} UTC" if text else NONE


def shortened(text: str, limit: int = 60) -> str:
    """Cut in the middle, which keeps both ends of names that differ only at the end."""
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]}…{text[-(limit // 3) :]}"


def natural(name: str) -> list[tuple[str, int]]:
    """A key by which ``gpu-9`` comes before ``gpu-10``."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d{0,15})", name)]
