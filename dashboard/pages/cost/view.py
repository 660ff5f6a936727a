"""The page of costs in words and numbers: rows, idleness by its kind, what sums to what, budgets and prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.cost.budgets import BudgetStanding, BudgetState
from kopt.core.cost.metering import GPU_HOUR, Idle
from kopt.core.cost.prices import Price
from kopt.core.units import WHOLE_GPU
from kopt.dashboard.formatting import NONE, share
from kopt.policies.cost.attribution import By, CostRow, Part
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.report import CostEvent, CostReport

ROWS, MOST_EVENTS, WIDTH = 100, 200, 1000.0
SPANS = (("1d", "day"), ("7d", "7 days"), ("30d", "30 days"), ("90d", "90 days"), ("365d", "year"))
BY_LABELS: Mapping[By, str] = {
    By.NAMESPACE: "namespace",
    By.QUEUE: "queue",
    By.TEAM: "team",
    By.WORKLOAD: "workload",
    By.POD: "pod",
    By.NODE: "node",
    By.MODEL: "GPU model",
}
IDLE_LABELS: Mapping[Idle, tuple[str, str]] = {
    Idle.UNALLOCATED: ("unallocated", "free, and of use to the pods that usually come"),
    Idle.STRANDED: ("stranded", "free, and too fragmented for them"),
    Idle.RESERVED: ("reserved", "free on nodes with a taint that keeps others away"),
    Idle.UNAVAILABLE: ("unavailable", "free on nodes that are cordoned or not ready"),
    Idle.UNOBSERVED: ("unobserved", "free while no meter ran"),
}
_BADGES = {BudgetState.WITHIN: "ok", BudgetState.SOFT: "stale", BudgetState.SPENT: "refused"}


@dataclass(frozen=True)
class Bar:
    """A part of the picture of who used what, in its units."""

    kind: str
    x: float
    width: float
    tooltip: str


@dataclass(frozen=True)
class PageRow:
    """``name`` is the row's own, ``share`` of all GPU-hours, ``width`` of the picture."""

    name: str
    part: str
    pods: int
    gpu_hours: str
    money: str
    share: str
    width: float
    steps: str
    per_step: str
    unused: str = ""
    """GPU-hours in which no kernel ran, where they are measured."""
    is_sum: bool = False


@dataclass(frozen=True)
class PageEvent:
    who: str
    node: str
    start: str
    end: str
    gpus: str
    gpu_hours: str
    price: str
    money: str
    source: str


@dataclass(frozen=True)
class PageBudget:
    """``filled``, ``soft`` and ``hard`` are units of a picture that is as wide as the larger of hard limit and use;
    ``projected`` is where it will be at the end of the window."""

    name: str
    target: str
    state: str
    badge: str
    message: str
    filled: float
    projected: float
    soft: float
    hard: float
    held: tuple[str, ...]


@dataclass(frozen=True)
class CostPage:
    """``problem`` is a sentence for the banner; ``report`` is None where there is nothing to show."""

    report: CostReport | None = None
    problem: str = ""
    configured: bool = False
    rows: tuple[PageRow, ...] = ()
    bars: tuple[Bar, ...] = ()
    idle: tuple[tuple[str, str, str, str], ...] = ()
    totals: tuple[tuple[str, str, str, str], ...] = ()
    """Currency, total, projected, idle."""
    closing: str = ""
    unused: str = ""
    """What pods held while no kernel ran, where it is measured."""
    unpriced: tuple[str, ...] = ()
    budgets: tuple[PageBudget, ...] = ()
    prices: tuple[tuple[str, ...], ...] = ()
    events: tuple[PageEvent, ...] = ()
    events_in_all: int = 0
    events_sum: str = ""
    pages: tuple[tuple[str, str], ...] = field(default=())
    """Word and offset of further pages."""


def money(micro: int | None, currency: str = "") -> str:
    """Two decimals, with its currency."""
    return NONE if micro is None else f"{micro / 1_000_000:,.2f} {currency}".rstrip()


def hours(used: int) -> str:
    return f"{used / GPU_HOUR:,.1f}"


def report_fields(report: CostReport, offset: int) -> dict[str, object]:
    """Fields of ``CostPage`` about a report."""
    pod_rows = tuple(row for row in report.rows if row.part is Part.PODS)
    return {
        "report": report,
        "rows": tuple(_row(row, report) for row in (*pod_rows, *report.rest)),
        "bars": _bars(report),
        "idle": _idle(report),
        "totals": tuple(
            (
                currency,
                money(micro),
                money(report.projected_micro.get(currency)),
                NONE if report.nodes is None else money(report.idle_micro.get(currency, 0)),
            )
            for currency, micro in sorted(report.micro.items())
        ),
        "closing": _closing(report),
        "unused": _unused(report),
        "unpriced": tuple(f"{name}: {hours(used)} GPU-hours" for name, used in report.unpriced.items()),
        "pages": _pages(report.count, offset),
    }


def _row(row: CostRow, report: CostReport) -> PageRow:
    part = row.used / report.used if report.used else 0.0
    per_step, unused = row.micro_per_step, report.unused_of(row)
    return PageRow(
        row.name,
        row.part.value,
        row.pods,
        hours(row.used),
        money(None if row.unpriced else row.micro, row.currency),
        share(part),
        round(part * 100, 2),
        f"{row.steps:,}" if row.steps else "",
        "" if per_step is None else f"{per_step / 1e6:.6f} {row.currency}",
        "" if unused is None else f"{hours(unused.used)}, {share(unused.used / row.used)}",
        row in report.rest,
    )


def _unused(report: CostReport) -> str:
    """What no kernel ran in, of what was measured; empty where nothing is."""
    unused = report.unused_in_all
    held = sum(row.used for row in (*report.rows, *report.rest) if row.part is Part.PODS)
    if unused is None or unused.unmeasured >= held:
        return ""
    measured = held - unused.unmeasured
    amounts = "".join(f", {money(micro, currency)}" for currency, micro in sorted(report.unused_micro.items()))
    text = f"{hours(unused.used)} GPU-hours, {share(unused.used / measured)} of those that were measured{amounts}"
    return text + (f"; {hours(unused.unmeasured)} were not measured" if unused.unmeasured else "")


def _bars(report: CostReport) -> tuple[Bar, ...]:
    """Pods, and each kind of idleness, of all GPU-hours."""
    if not report.used or report.nodes is None:
        return ()
    idle = report.idle_used
    parts = [("pods", "pods", report.used - sum(idle.values()))]
    parts += [(kind.value, f"idle, {IDLE_LABELS[kind][0]}", used) for kind, used in idle.items()]
    bars, x = [], 0.0
    for kind, word, used in parts:
        width = used / report.used * WIDTH
        bars.append(
            Bar(kind, round(x, 2), round(width, 2), f"{word}: {hours(used)} GPU-hours, {share(used / report.used)}")
        )
        x += width
    return tuple(bars)


def _idle(report: CostReport) -> tuple[tuple[str, str, str, str], ...]:
    """Kind, what it means, GPU-hours, share; of those that whoever sees nodes sees."""
    if report.nodes is None:
        return ()
    idle = report.idle_used
    always = (Idle.UNALLOCATED, Idle.STRANDED, Idle.RESERVED)
    return tuple(
        (kind.value, IDLE_LABELS[kind][1], hours(idle.get(kind, 0)), share(idle.get(kind, 0) / (report.used or 1)))
        for kind in Idle
        if kind in always or idle.get(kind)
    )


def _closing(report: CostReport) -> str:
    nodes, apart = report.nodes, report.apart
    if nodes is None or apart is None:
        return ""
    amounts = ", ".join(
        f"{money(nodes.micro.get(currency, 0), currency)} by nodes and {money(micro, currency)} by rows"
        for currency, micro in sorted(report.micro.items())
    )
    says = "They agree" if apart == 0 and dict(nodes.micro) == dict(report.micro) else "They differ"
    difference = f"{apart / GPU_HOUR:,.6f} GPU-hours apart"
    both = f"{hours(report.used)} GPU-hours of pods and idleness, {hours(nodes.used)} of nodes, {difference}"
    return f"{says}: {both}{f'; {amounts}' if amounts else ''}."


def _pages(count: int, offset: int) -> tuple[tuple[str, str], ...]:
    result = []
    if offset > 0:
        result.append(("Previous", str(max(0, offset - ROWS))))
    if offset + ROWS < count:
        result.append(("Next", str(offset + ROWS)))
    return tuple(result)


def event_fields(events: Sequence[CostEvent]) -> dict[str, object]:
    """Fields of ``CostPage`` about a row that is explained."""
    sums: dict[str, int] = {}
    for event in events:
        if event.price is not None:
            sums[event.price.currency] = sums.get(event.price.currency, 0) + (event.micro or 0)
    amounts = "".join(f", {money(micro, currency)}" for currency, micro in sorted(sums.items()))
    return {
        "events": tuple(_event(event) for event in events[:MOST_EVENTS]),
        "events_in_all": len(events),
        "events_sum": f"{sum(event.used for event in events) / GPU_HOUR:,.3f} GPU-hours{amounts}",
    }


def _event(event: CostEvent) -> PageEvent:
    price = event.price
    return PageEvent(
        event.who,
        event.node,
        stamp(event.start_ms),
        stamp(event.end_ms),
        f"{event.milli / WHOLE_GPU:g}",
        f"{event.used / GPU_HOUR:,.3f}",
        NONE if price is None else f"{price.micro_per_gpu_hour / 1e6:g} {price.currency}",
        money(event.micro, price.currency if price is not None else ""),
        "" if price is None else price.source,
    )


def page_budgets(budgets: Sequence[BudgetStanding]) -> tuple[PageBudget, ...]:
    """The fullest first."""
    return tuple(_budget(each) for each in sorted(budgets, key=lambda each: (-each.filled, each.budget.name)))


def _budget(standing: BudgetStanding) -> PageBudget:
    budget, limit = standing.budget, standing.limit
    hard, soft = limit * budget.hard_percent / 100, limit * budget.soft_percent / 100
    scale = WIDTH / (max(hard, standing.used, min(standing.projected, 1.5 * hard), 1e-9) * 1.02)
    target = ", ".join(
        filter(
            None,
            (
                budget.namespace and f"namespace {budget.namespace}",
                budget.local_queue and f"queue {budget.local_queue}",
                budget.cluster_queue and f"ClusterQueue {budget.cluster_queue}",
                *(f"{key}={value}" for key, value in (budget.labels or {}).items()),
            ),
        )
    )
    filled, projected, soft, hard = (
        round(min(value * scale, WIDTH), 2) for value in (standing.used, standing.projected, soft, hard)
    )
    return PageBudget(
        budget.name,
        target or "everything",
        standing.state.value,
        _BADGES.get(standing.state, "pending"),
        standing.message,
        filled,
        projected,
        soft,
        hard,
        standing.held_queues,
    )


def price_rows(prices: Sequence[Price]) -> tuple[tuple[str, ...], ...]:
    """Model, provider, region, capacity, price, from when, source."""
    return tuple(
        (
            price.model,
            price.provider or "any",
            price.region or "any",
            price.capacity,
            f"{price.micro_per_gpu_hour / 1e6:,.4g} {price.currency}",
            stamp(price.from_ms)[:10] if price.from_ms else "always",
            price.source,
        )
        for price in sorted(prices, key=lambda each: (each.model, each.provider, each.capacity, -each.from_ms))
    )
