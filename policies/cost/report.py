"""A report of costs: a page of rows, the sum of those beside it, and node-hours × price that all of them sum to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kopt.core.cost.metering import GPU_HOUR, Idle, MilliGpuMs, Milliseconds, Offer, Rule
from kopt.core.cost.prices import Price
from kopt.policies.cost.attribution import UNATTRIBUTED, By, CostRow, Part, Unused
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.invoice import amounts

MOST_ROWS = 1_000
"""Of a page; further rows are one sum."""
MONTH_MS = 30 * 86_400_000


class Charge(NamedTuple):
    """What a row used of one offer at one price. ``key`` tells parts of a row apart whose pods differ; steps are -1
    where nothing is known."""

    name: str
    part: Part
    key: str
    offer: Offer
    price: Price | None
    used: MilliGpuMs
    pods: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class NodeHours:
    """GPU time of nodes, which is recorded apart from who used it, and its price in millionths by currency."""

    used: MilliGpuMs
    micro: Mapping[str, int]


@dataclass(frozen=True)
class CostReport:
    """``rows`` are a page of the ``count`` rows of pods, and all of idleness; ``rest`` is the sum of the others, one
    row for each currency. ``used`` and ``micro`` are of all of them.

    ``nodes`` is None where its reader sees some ``namespaces`` alone: their pods, and no idleness.
    """

    by: By
    label: str
    start_ms: Milliseconds
    end_ms: Milliseconds
    rule: Rule
    rows: tuple[CostRow, ...]
    rest: tuple[CostRow, ...]
    count: int
    used: MilliGpuMs
    micro: Mapping[str, int]
    nodes: NodeHours | None
    unpriced: Mapping[str, MilliGpuMs] = field(default_factory=dict)
    """By offer, in words."""
    namespaces: tuple[str, ...] | None = None
    unused: Mapping[tuple[str, str], Unused] | None = None
    """What pods held while no kernel ran, by name and currency of the rows of pods; None where nobody measures."""

    def unused_of(self, row: CostRow) -> Unused | None:
        """None where nothing of a row was measured."""
        unused = None if self.unused is None else self.unused.get((row.name, row.currency))
        return None if unused is None or unused.unmeasured >= row.used else unused

    @property
    def unused_in_all(self) -> Unused | None:
        """Of all rows, also of those that are not on this page."""
        if self.unused is None:
            return None
        every = self.unused.values()
        return Unused(sum(row.used for row in every), 0, sum(row.unmeasured for row in every))

    @property
    def unused_micro(self) -> Mapping[str, int]:
        """By currency."""
        result: dict[str, int] = {}
        for (_, currency), unused in (self.unused or {}).items():
            if currency:
                result[currency] = result.get(currency, 0) + unused.micro
        return result

    @property
    def idle_micro(self) -> Mapping[str, int]:
        """By currency."""
        result: dict[str, int] = {}
        for row in self.rows:
            if row.part is Part.IDLE and row.currency:
                result[row.currency] = result.get(row.currency, 0) + row.micro
        return result

    @property
    def idle_used(self) -> Mapping[Idle, MilliGpuMs]:
        """By kind."""
        kinds = {f"(idle: {kind.value})": kind for kind in Idle}
        result: dict[Idle, MilliGpuMs] = {}
        for row in self.rows:
            if kind := kinds.get(row.name) if row.part is Part.IDLE else None:
                result[kind] = result.get(kind, 0) + row.used
        return result

    @property
    def projected_micro(self) -> Mapping[str, int]:
        """In 30 days, if they are as this time was."""
        span_ms = self.end_ms - self.start_ms
        return {name: micro * MONTH_MS // span_ms for name, micro in self.micro.items()} if span_ms > 0 else {}

    @property
    def apart(self) -> MilliGpuMs | None:
        """By how much pods and idleness differ from nodes: 0, unless something is broken; None where it is not seen."""
        return None if self.nodes is None else abs(self.used - self.nodes.used)

    def _repr_html_(self) -> str:
        """A table for notebooks; names are escaped."""
        from kopt.policies.cost.notebook import table

        return table(self)

    def to_dict(self) -> dict[str, Any]:
        """As ``kopt cost -o json`` and ``GET /v1/cost`` have it; amounts are millionths."""
        nodes, unused = self.nodes, self.unused_in_all
        return {
            "from": stamp(self.start_ms),
            "until": stamp(self.end_ms),
            "from_ms": self.start_ms,
            "until_ms": self.end_ms,
            "by": self.by.value,
            "label": self.label,
            "gpu_hours": self.used / GPU_HOUR,
            "node_gpu_hours": None if nodes is None else nodes.used / GPU_HOUR,
            "micro": dict(self.micro),
            "node_micro": None if nodes is None else dict(nodes.micro),
            "projected_micro": dict(self.projected_micro),
            "unpriced_gpu_hours": {name: used / GPU_HOUR for name, used in self.unpriced.items()},
            "namespaces": None if self.namespaces is None else list(self.namespaces),
            "unused_gpu_hours": None if unused is None else unused.used / GPU_HOUR,
            "unused_micro": None if unused is None else dict(self.unused_micro),
            "unmeasured_gpu_hours": None if unused is None else unused.unmeasured / GPU_HOUR,
            "rows_in_all": self.count,
            "rule": self.rule.sentence,
        }


def format_offer(offer: Offer) -> str:
    """For people."""
    return " ".join(filter(None, (offer.model or "unknown GPUs", offer.provider, offer.capacity)))


class Sums:
    """Rows of charges, as ``attribution.attributed`` makes them of lines.

    Columns instead of objects: of ten thousand rows a page is looked at.
    """

    def __init__(self, charges: Sequence[Charge], by: By, label: str = "") -> None:
        self._rows: dict[tuple[str, str], int] = {}
        self._parts: list[Part] = []
        self._used: list[int] = []
        self._micro: list[int] = []
        self._pods: list[int] = []
        self._first: list[int] = []
        self._last: list[int] = []
        self._has_steps = by in (By.WORKLOAD, By.POD) and not label
        self._add(charges)
        self._names = list(self._rows)

    def _add(self, charges: Sequence[Charge]) -> None:
        micro = amounts([(charge.used, charge.price) for charge in charges])
        counted: dict[tuple[int, str], int] = {}
        columns = self._used, self._micro, self._pods, self._first, self._last
        for (name, part, key, _, price, used, pods, first, last), amount in zip(charges, micro, strict=True):
            row = self._rows.setdefault((name, "" if price is None else price.currency), len(self._parts))
            if row == len(self._parts):
                self._parts.append(part)
                for column, value in zip(columns, (used, amount or 0, pods, first, last), strict=True):
                    column.append(value)
                counted[row, key] = pods
                continue
            self._used[row] += used
            self._micro[row] += amount or 0
            # The same pods come again where a price changes.
            before = counted.get((row, key), 0)
            if pods > before:
                counted[row, key] = pods
                self._pods[row] += pods - before
            if last >= 0:
                self._first[row] = first if self._first[row] < 0 else min(self._first[row], first)
                self._last[row] = max(self._last[row], last)

    @property
    def used(self) -> MilliGpuMs:
        return sum(self._used)

    @property
    def micro(self) -> Mapping[str, int]:
        """By currency; what has no price has none."""
        result: dict[str, int] = {}
        for (_, currency), micro in zip(self._names, self._micro, strict=True):
            if currency:
                result[currency] = result.get(currency, 0) + micro
        return result

    def page(self, offset: int, limit: int) -> tuple[tuple[CostRow, ...], tuple[CostRow, ...], int]:
        """Rows of a page with all of idleness, the sum of those that are not on it by currency, and how many rows of
        pods there are. A limit of 0 is none."""
        order = self._order()
        pods = [row for row in order if self._parts[row] is Part.PODS]
        idle = order[len(pods) :]
        end = offset + limit if limit else len(pods)
        page = tuple(self._row(row) for row in (*pods[offset:end], *idle))
        return page, self._rest(pods[:offset] + pods[end:]), len(pods)

    def _order(self) -> list[int]:
        """The most expensive first, then what is not attributed, then idleness."""
        order = sorted(range(len(self._names)), key=self._names.__getitem__)
        order.sort(key=self._used.__getitem__, reverse=True)
        order.sort(key=self._micro.__getitem__, reverse=True)
        last = [self._parts[row] is Part.IDLE for row in range(len(order))]
        unattributed = [name == UNATTRIBUTED for name, _ in self._names]
        order.sort(key=unattributed.__getitem__)
        order.sort(key=last.__getitem__)
        return order

    def _row(self, row: int) -> CostRow:
        name, currency = self._names[row]
        pods = self._pods[row] if self._parts[row] is Part.PODS else 0
        steps = max(0, self._last[row] - max(self._first[row], 0)) if self._has_steps else 0
        used = self._used[row]
        return CostRow(name, self._parts[row], used, 0 if currency else used, self._micro[row], currency, pods, steps)

    def _rest(self, rows: Sequence[int]) -> tuple[CostRow, ...]:
        of_currency: dict[str, list[int]] = {}
        for row in rows:
            of_currency.setdefault(self._names[row][1], []).append(row)
        result = []
        for currency, several in sorted(of_currency.items()):
            used, micro, pods = (
                sum(map(column.__getitem__, several)) for column in (self._used, self._micro, self._pods)
            )
            name = f"({len(several):,} more)"
            result.append(CostRow(name, Part.PODS, used, 0 if currency else used, micro, currency, pods))
        return tuple(result)


@dataclass(frozen=True)
class CostQuestion:
    """Of a window, by whom; rows ``offset`` to ``offset + limit``, where 0 is no limit. With ``namespaces`` only what
    their pods used is answered; None is everything."""

    start_ms: Milliseconds
    end_ms: Milliseconds
    by: By = By.NAMESPACE
    label: str = ""
    offset: int = 0
    limit: int = MOST_ROWS
    namespaces: frozenset[str] | None = None


@dataclass(frozen=True)
class CostEvent:
    """A part of a row: ``who``, a pod or a kind of idleness, had one share of one node at one price. ``uid`` is the
    pod's, and ``run`` the UID of what made it; both are empty where nobody knows."""

    who: str
    node: str
    start_ms: Milliseconds
    end_ms: Milliseconds
    milli: int
    used: MilliGpuMs
    price: Price | None
    micro: int | None
    uid: str = ""
    run: str = ""
