"""Times as RFC 3339 writes them, and as Unix seconds."""

from datetime import UTC, datetime


def stamp(at_s: float) -> str:
    """Unix seconds as RFC 3339, in whole seconds."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def optional_stamp(at_s: float | None) -> str | None:
    """The same; None for None."""
    return None if at_s is None else stamp(at_s)


def micro_stamp(at_s: float) -> str:
    """Unix seconds as a MicroTime of Kubernetes."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(text: str) -> float:
    """RFC 3339 as Unix seconds. Raises ValueError, and OverflowError for the first and last days of the calendar."""
    return datetime.fromisoformat(text).timestamp()


def seconds_or_none(text: object) -> float | None:
    """The same of what anybody may have written; None for anything that is no time."""
    try:
        return seconds(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
