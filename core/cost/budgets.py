"""Budgets: how much a team may use in a window, and what happens when it has."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kopt.core.cost.metering import Milliseconds


class Period(StrEnum):
    """Windows begin at midnight UTC: of each day, of Monday, of the first of a month."""

    DAY = "Day"
    WEEK = "Week"
    MONTH = "Month"


class BudgetAction(StrEnum):
    """``HOLD``: nothing new of its queues starts until the next window; what runs goes on."""

    REPORT = "Report"
    HOLD = "Hold"


class BudgetState(StrEnum):
    WITHIN = "Within"
    SOFT = "SoftLimit"
    SPENT = "Spent"
    EXCEPTED = "Excepted"
    UNKNOWN = "Unknown"
    """Its currency has no price for part of what was used."""


@dataclass(frozen=True)
class BudgetException:
    """Until ``until_ms`` a spent budget holds nothing, for a reason and by somebody who are both recorded."""

    until_ms: Milliseconds
    reason: str
    by: str


@dataclass(frozen=True)
class Budget:
    """What pods of a namespace may use, of one LocalQueue of it, of a ClusterQueue's LocalQueues, or with a label.

    Exactly one of ``gpu_hours_milli`` (thousandths) and ``micro`` (millionths of ``currency``) is above 0. Percentages
    of it: from ``soft_percent`` on it is said, from ``hard_percent`` on it is acted.
    """

    name: str
    period: Period
    gpu_hours_milli: int = 0
    micro: int = 0
    currency: str = ""
    namespace: str = ""
    local_queue: str = ""
    cluster_queue: str = ""
    labels: Mapping[str, str] | None = None
    soft_percent: int = 80
    hard_percent: int = 100
    action: BudgetAction = BudgetAction.REPORT
    exceptions: tuple[BudgetException, ...] = ()


@dataclass(frozen=True)
class BudgetStanding:
    """What the meter last said of a budget. ``used``, ``limit`` and ``projected`` (at the end of the window) are
    GPU-hours, or amounts of its currency; ``held_queues`` are ``namespace/name`` of LocalQueues."""

    budget: Budget
    state: BudgetState = BudgetState.UNKNOWN
    used: float = 0.0
    limit: float = 0.0
    projected: float = 0.0
    message: str = ""
    held_queues: tuple[str, ...] = ()

    @property
    def filled(self) -> float:
        """Share of the limit."""
        return self.used / self.limit if self.limit else 0.0
