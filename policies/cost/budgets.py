"""Whether a budget is spent, when its next window begins, and what will have been used by then."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kopt.core.cost.budgets import Budget, BudgetAction, BudgetException, BudgetState, Period
from kopt.core.cost.metering import GPU_HOUR, Attributes, MilliGpuMs, Milliseconds
from kopt.core.units import counted
from kopt.policies.cost.invoice import Line


@dataclass(frozen=True)
class BudgetDecision:
    """``used`` and ``limit`` in thousandths of GPU-hours, or in millionths of the currency. ``opens_ms``: the end of
    the window. ``projected``: what will have been used then if it goes on as in this window."""

    budget: Budget
    state: BudgetState
    used: int
    limit: int
    projected: int
    opens_ms: Milliseconds
    exception: BudgetException | None = None

    @property
    def holds(self) -> bool:
        return self.state is BudgetState.SPENT and self.budget.action is BudgetAction.HOLD

    @property
    def sentence(self) -> str:
        """What, how much, and when it opens again."""
        budget = self.budget
        opens = stamp(self.opens_ms)
        used, limit = amount(budget, self.used), amount(budget, self.limit)
        head = f"Budget {budget.name}: {used} of {limit} used in this {budget.period.lower()}"
        if self.state is BudgetState.UNKNOWN:
            return f"{head}, without what has no price in {budget.currency}: nothing is held."
        if self.exception is not None:
            until = stamp(self.exception.until_ms)
            return f"{head}. {self.exception.by} lets it go on until {until}: {self.exception.reason}"
        if self.holds:
            return f"{head}: nothing new starts until {opens}. What runs goes on."
        if self.state is BudgetState.SPENT:
            return f"{head}: it is spent until {opens}, and only reported."
        projected = amount(budget, self.projected)
        return f"{head}; as it goes on, {projected} by {opens}."


def window_of(period: Period, now_ms: Milliseconds) -> tuple[Milliseconds, Milliseconds]:
    """Start and end of the window that ``now_ms`` lies in."""
    midnight = datetime.fromtimestamp(now_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period is Period.DAY:
        start, end = midnight, midnight + timedelta(days=1)
    elif period is Period.WEEK:
        start = midnight - timedelta(days=midnight.weekday())
        end = start + timedelta(days=7)
    else:
        start = midnight.replace(day=1)
        end = (start + timedelta(days=32)).replace(day=1)
    return int(start.timestamp() * 1000), int(end.timestamp() * 1000)


def applies(budget: Budget, pod: Attributes, queues: frozenset[tuple[str, str]]) -> bool:
    """Whether a pod is of a budget; ``queues``: namespace and name of the LocalQueues of its ClusterQueue."""
    if budget.namespace and pod.namespace != budget.namespace:
        return False
    if budget.local_queue and pod.queue != budget.local_queue:
        return False
    if budget.cluster_queue and (pod.namespace, pod.queue) not in queues:
        return False
    return all(pod.labels.get(key) == value for key, value in (budget.labels or {}).items())


def budget_decision(budget: Budget, lines: Iterable[Line], now_ms: Milliseconds) -> BudgetDecision:
    """``lines``: of the budget's pods, in the window that ``now_ms`` lies in."""
    of_it = list(lines)
    start_ms, end_ms = window_of(budget.period, now_ms)
    if budget.gpu_hours_milli:
        limit, used = budget.gpu_hours_milli, gpu_hours_milli(sum(line.usage.used for line in of_it))
        unknown = False
    else:
        priced = [line for line in of_it if line.usage.price and line.usage.price.currency == budget.currency]
        limit, used = budget.micro, sum(line.micro or 0 for line in priced)
        unknown = len(priced) < len(of_it)
    projected = used * (end_ms - start_ms) // max(1, now_ms - start_ms)
    exception = max(
        (item for item in budget.exceptions if item.until_ms > now_ms), key=lambda item: item.until_ms, default=None
    )
    state = _state(budget, used, limit, unknown=unknown, excepted=exception is not None)
    return BudgetDecision(
        budget, state, used, limit, projected, end_ms, exception if state is BudgetState.EXCEPTED else None
    )


def _state(budget: Budget, used: int, limit: int, *, unknown: bool, excepted: bool) -> BudgetState:
    if used * 100 >= limit * budget.hard_percent:
        return BudgetState.EXCEPTED if excepted else BudgetState.SPENT
    if unknown:
        return BudgetState.UNKNOWN
    return BudgetState.SOFT if used * 100 >= limit * budget.soft_percent else BudgetState.WITHIN


def gpu_hours_milli(used: MilliGpuMs) -> int:
    """Thousandths of GPU-hours."""
    return used * 1000 // GPU_HOUR


def amount(budget: Budget, value: int) -> str:
    """For people."""
    if budget.gpu_hours_milli:
        return counted(f"{value / 1000:,.1f}", "GPU-hour")
    return f"{value / 1_000_000:,.2f} {budget.currency}"


def stamp(ms: Milliseconds) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
