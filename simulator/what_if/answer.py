"""The answer: figures of a cluster as it is and as it would be, side by side, and how far they can be trusted."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kopt.core.notebook import table
from kopt.core.reason import Reason
from kopt.core.units import format_span

Interval = tuple[float, float]
EVERYBODY = "all"
HEADINGS = ("figure", "of", "recorded", "as it is", "5–95 %", "as it would be", "5–95 %", "change", "5–95 %")


class Unit(StrEnum):
    SECONDS = "s"
    SHARE = "share"
    GPU_HOURS = "GPU-hours"
    GPUS = "GPUs"
    JOBS = "jobs"
    MONEY = "USD"


@dataclass(frozen=True)
class Figure:
    """``of`` a queue, a user or a pool. ``recorded`` is None for what no record says; intervals are None where the days
    are too few, and where the figure is exact. ``change`` is that of the same days."""

    what: str
    of: str
    unit: Unit
    recorded: float | None
    as_is: float
    what_if: float
    as_is_interval: Interval | None = None
    what_if_interval: Interval | None = None
    change_interval: Interval | None = None

    @property
    def change(self) -> float:
        return self.what_if - self.as_is

    def cells(self) -> tuple[str, ...]:
        """For people, as ``HEADINGS`` has it."""
        values = (
            "" if self.recorded is None else self._text(self.recorded),
            self._text(self.as_is),
            self._between(self.as_is_interval),
            self._text(self.what_if),
            self._between(self.what_if_interval),
            self._text(self.change, signed=True),
            self._between(self.change_interval, signed=True),
        )
        return (self.what, self.of, *values)

    def _between(self, interval: Interval | None, *, signed: bool = False) -> str:
        return "" if interval is None else " – ".join(self._text(end, signed=signed) for end in interval)

    def _text(self, value: float, *, signed: bool = False) -> str:
        sign = ("−" if value < 0 else "+") if signed and round(abs(value), 3) else ""
        amount = abs(value) if signed else value
        match self.unit:
            case Unit.SECONDS:
                return sign + format_span(amount)
            case Unit.SHARE:
                return f"{sign}{100 * amount:.1f} {'points' if signed else '%'}"
            case Unit.MONEY:
                return f"{sign}{amount:,.2f}"
            case _:
                return f"{sign}{amount:,.0f}"


@dataclass(frozen=True)
class ReplayCheck:
    """How the replay of the cluster as it is compares with the record: ``error`` sums up by how much the waits of each
    day differ, as a share of what was waited for GPUs, over the half of the days that the order was not selected on.
    ``held_share`` of what was waited passed while enough GPUs were free for all that waited, and ``fitting_share``
    while they were for the job alone. All three are None without recorded waits."""

    order: str
    days: int
    jobs: int
    waited_jobs: int
    error: float | None
    held_share: float | None
    fitting_share: float | None
    reason: Reason

    @property
    def is_trusted(self) -> bool:
        return self.reason.code == "WHAT_IF_REPLAY_HOLDS"


@dataclass(frozen=True)
class WhatIf:
    """``assumptions`` are sentences; ``left_out`` jobs ran on GPUs of no pool that was named."""

    figures: tuple[Figure, ...]
    check: ReplayCheck
    assumptions: tuple[str, ...]
    left_out: int = 0

    def figure(self, what: str, of: str = EVERYBODY) -> Figure:
        """Raises KeyError."""
        for figure in self.figures:
            if (figure.what, figure.of) == (what, of):
                return figure
        raise KeyError(f"no figure {what!r} of {of!r}")

    def to_dict(self) -> dict[str, Any]:
        """Only what JSON knows."""
        figures = [asdict(figure) | {"unit": figure.unit.value, "change": figure.change} for figure in self.figures]
        check: Mapping[str, Any] = asdict(self.check) | {"trusted": self.check.is_trusted}
        return {
            "check": check,
            "assumptions": list(self.assumptions),
            "left_out": self.left_out,
            "figures": figures,
        }

    def _repr_html_(self) -> str:
        """For notebooks."""
        caption = "Trusted: " if self.check.is_trusted else "Not to be trusted: "
        rows = (figure.cells() for figure in self.figures)
        return table(caption + self.check.reason.message, HEADINGS, rows, " ".join(self.assumptions))
