"""What the query of a page or of ``/v1/cost`` asks for; everything in it is others' text."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kopt.core.cost.metering import Milliseconds
from kopt.policies.cost.attribution import By
from kopt.policies.cost.report import MOST_ROWS, CostQuestion

_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
LONGEST_MS = 400 * 86_400_000
"""As long as the meter keeps intervals by default."""
_MOST_OFFSET = 10_000_000
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
LONGEST_ROW = 1_024
FIELDS = ("by", "label", "since", "from", "until", "namespace", "limit", "offset")


class QueryError(ValueError):
    """A query that cannot be answered; the message names the field and what may stand there."""


@dataclass(frozen=True)
class CostRequest:
    """``question`` is about all namespaces until the reader's rights restrict it."""

    question: CostQuestion
    namespace: str = ""


def read_request(
    query: Mapping[str, str], now_ms: Milliseconds, *, limit: int, fields: Collection[str] = FIELDS
) -> CostRequest:
    """Raises QueryError. A field that there is not is refused: a misspelt ``namespace`` would ask about all."""
    if unknown := sorted(set(query) - set(fields)):
        raise QueryError(f"there is no {unknown[0][:40]!r} to ask with; there are {', '.join(fields)}")
    by = query.get("by") or By.NAMESPACE.value
    if by not in list(By):
        raise QueryError(f"by is {', '.join(By)}, not {by[:40]!r}")
    label, namespace = query.get("label", ""), query.get("namespace", "")
    if label and not _LABEL.fullmatch(label):
        raise QueryError(f"label is the key of a label, not {label[:40]!r}")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise QueryError(f"namespace is the name of a namespace, not {namespace[:40]!r}")
    start_ms, end_ms = _window(query, now_ms)
    question = CostQuestion(start_ms, end_ms, By(by), label)
    offset, most = _number(query, "offset", 0, 0, _MOST_OFFSET), _number(query, "limit", limit, 1, MOST_ROWS)
    return CostRequest(replace(question, offset=offset, limit=most), namespace)


def _window(query: Mapping[str, str], now_ms: Milliseconds) -> tuple[Milliseconds, Milliseconds]:
    """By ``since`` until now, or from ``from`` until ``until``."""
    end_ms = _time(query["until"], "until") if query.get("until") else now_ms
    if query.get("from"):
        if query.get("since"):
            raise QueryError("since and from say the same; ask with one of them")
        start_ms = _time(query["from"], "from")
    else:
        start_ms = end_ms - _span_ms(query.get("since") or "30d")
    if not 0 <= start_ms < end_ms:
        raise QueryError("the window ends before it begins: from has to be before until")
    if start_ms >= now_ms:
        raise QueryError("the window has not begun: from is after now")
    if end_ms - start_ms > LONGEST_MS:
        raise QueryError("the window is longer than 400 days")
    return start_ms, end_ms


def _span_ms(text: str) -> Milliseconds:
    match = _SPAN.fullmatch(text)
    span_ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not span_ms:
        raise QueryError(f"since is a span such as 30d, 12h or 90m, not {text[:40]!r}")
    return span_ms


def _time(text: str, field: str) -> Milliseconds:
    try:
        at = datetime.fromisoformat(text[:40])
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise QueryError(f"{field} is a time such as 2026-01-31T12:00:00Z, not {text[:40]!r}") from error


def _number(query: Mapping[str, str], field: str, default: int, least: int, most: int) -> int:
    text = query.get(field) or str(default)
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise QueryError(f"{field} is a whole number from {least} to {most:,}, not {text[:40]!r}")
    return int(text)
