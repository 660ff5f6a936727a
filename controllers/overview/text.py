"""Spans, moments and amounts in sentences."""

from datetime import UTC, datetime

from kopt.core.units import format_gpus


def span(of_s: float) -> str:
    """``45 s``, ``12 min``, ``3 h 05 min``, ``2 days``."""
    whole = max(0, round(of_s))
    if whole < 100:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole / 60:.0f} min"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole / 86_400:.0f} days"


def clock_time(at_s: float, now_s: float) -> str:
    """``14:02 UTC``, with the day where it is not today's."""
    try:
        at, now = datetime.fromtimestamp(at_s, UTC), datetime.fromtimestamp(now_s, UTC)
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    return at.strftime("%H:%M UTC" if at.date() == now.date() else "%Y-%m-%d %H:%M UTC")


def since(at_s: float | None, now_s: float) -> str:
    """``, since 14:02 UTC (12 min)``; empty if unknown."""
    return "" if at_s is None else f", since {clock_time(at_s, now_s)} ({span(now_s - at_s)})"


def ago(at_s: float, now_s: float) -> str:
    """``12 min ago``, ``in 5 min``."""
    return f"in {span(at_s - now_s)}" if at_s > now_s else f"{span(now_s - at_s)} ago"


def gpus(milli: int) -> str:
    """``1 GPU``, ``8 GPUs``, ``0.5 GPU``."""
    return f"{format_gpus(milli)} GPU{'' if milli <= 1000 else 's'}"


def ordinal(number: int) -> str:
    """``1st``, ``22nd``, ``113th``."""
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"


def listed(names: list[str], most: int = 3) -> str:
    """``a, b, c and 4 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def sentence(text: str, longest: int = 600) -> str:
    """A foreign message to append to ours: on one line, with a full stop."""
    flat = " ".join(text.split())
    flat = flat if len(flat) <= longest else flat[: longest - 1] + "…"
    return flat if not flat or flat[-1] in ".!?…" else flat + "."
