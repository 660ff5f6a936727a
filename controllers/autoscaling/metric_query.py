"""What an autoscaler asks for: the name of a metric, its own namespace, and a selector whose labels say the rest.

kopt_requests_per_second of service=chat, lead=10m, quantile=0.9
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kopt.serving.contract.common import GRID_S, MAX_HORIZONS

LONGEST_LEAD_S = MAX_HORIZONS * GRID_S
_DEFAULT_LEAD, _DEFAULT_QUANTILE = "10m", "0.9"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SPAN = re.compile(r"([0-9]{1,5})([smh])")
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_LABELS = ("service", "lead", "quantile", "capacity-per-gpu")


class MetricName(StrEnum):
    """The metrics that there are."""

    REQUESTS_PER_SECOND = "kopt_requests_per_second"
    GPUS_NEEDED = "kopt_gpus_needed"


class SelectorError(ValueError):
    """A selector that says nothing to ask for; the message says what to change."""


@dataclass(frozen=True)
class MetricQuery:
    """``capacity_per_gpu``: requests in five minutes, as in a LendingPool; of GPUS_NEEDED only. ``labels`` are those of
    the answer: what was asked, and what was assumed."""

    name: MetricName
    series: str
    lead_s: int
    quantile: float
    capacity_per_gpu: float | None
    labels: tuple[tuple[str, str], ...]

    @property
    def horizons_s(self) -> list[int]:
        """The ends of all buckets up to the first that covers the lead time."""
        return [GRID_S * (i + 1) for i in range(math.ceil(self.lead_s / GRID_S))]


def read_query(name: MetricName, namespace: str, selector: str) -> MetricQuery:
    """The query of a selector as the API server passes it on. Raises SelectorError."""
    labels = {"lead": _DEFAULT_LEAD, "quantile": _DEFAULT_QUANTILE} | _equalities(selector)
    if unknown := sorted(set(labels) - set(_LABELS)):
        raise SelectorError(f"{unknown[0][:63]!r} is no label of this metric; there are {', '.join(_LABELS)}")
    if not (service := labels.get("service", "")):
        raise SelectorError("the selector names no service: matchLabels: {service: NAME}")
    needs_capacity = name is MetricName.GPUS_NEEDED
    if needs_capacity != ("capacity-per-gpu" in labels):
        text = "needs the label capacity-per-gpu" if needs_capacity else "does not take the label capacity-per-gpu"
        raise SelectorError(f"{name} {text}, the requests that a GPU answers in five minutes")
    return MetricQuery(
        name,
        f"{namespace}/{service}",
        _lead_s(labels["lead"]),
        _number(labels, "quantile", lambda number: 0 < number < 1),
        _number(labels, "capacity-per-gpu", lambda number: number > 0) if needs_capacity else None,
        tuple(sorted(labels.items())),
    )


def _equalities(selector: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in selector.split(",") if selector else ():
        label, equals, value = part.partition("=")
        if not equals or label.endswith("!") or " " in part.strip():
            raise SelectorError(f"{part[:63]!r} is no equality; use matchLabels")
        labels[label.strip()] = value.removeprefix("=").strip()
    return labels


def _lead_s(text: str) -> int:
    match = _SPAN.fullmatch(text)
    lead_s = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < lead_s <= LONGEST_LEAD_S:
        raise SelectorError(f"lead={text[:63]!r} is no time up to {LONGEST_LEAD_S // 60}m, written like 10m or 1h")
    return lead_s


def _number(labels: dict[str, str], label: str, allows: Callable[[float], bool]) -> float:
    text = labels[label]
    if not _NUMBER.fullmatch(text) or not allows(number := float(text)):
        raise SelectorError(f"{label}={text[:63]!r} is out of range; write it like 0.9 or 900")
    return number
