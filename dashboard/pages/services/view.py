"""The table of services: rows, filters, order and pages."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import numpy as np

from kopt.core.units import WHOLE_GPU
from kopt.dashboard.data.sources import Service, Snapshot
from kopt.dashboard.formatting import amount, span
from kopt.dashboard.pages.lending.view import own_pool
from kopt.dashboard.pages.services.sparkline import Sparkline, sparkline
from kopt.dashboard.pages.services.state import Condition, State, condition
from kopt.policies.lending.policy import CurvePoint, gpus_for
from kopt.serving.contract.common import DEFAULT_HORIZONS_S

PAGE_SIZE = 50
HORIZONS_S = DEFAULT_HORIZONS_S
SORTS = ("state", "name", "now", "lend", *(f"p{q}_{h // 60}" for h in HORIZONS_S for q in (50, 99)))


@dataclass(frozen=True)
class Ahead:
    """One horizon of a row: demand and the GPUs it takes; None where the forecast is refused or absent."""

    horizon_s: int
    p50: float | None = None
    p99: float | None = None
    gpus50: int | None = None
    gpus99: int | None = None


@dataclass(frozen=True)
class Row:
    """One service. ``lendable`` are whole GPUs over the longest horizon, ``held`` what it has now."""

    service: Service
    condition: Condition
    now: float | None
    gpus_now: int | None
    ahead: tuple[Ahead, ...]
    lendable: int | None
    url: str
    unusual: str
    """How demand differs from what the service's past lets expect; empty where it does not."""

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def spark(self) -> Sparkline:
        """Drawn only for the rows of the page that is looked at."""
        return sparkline(self.service)

    @property
    def spark_text(self) -> str:
        ends = f", median in 60 min {amount(self.ahead[-1].p50)}" if self.ahead else ""
        return f"Last 24 hours, now {amount(self.now)} {self.service.series.unit}{ends}"


@dataclass(frozen=True)
class Choice:
    """What the reader asked for; unknown values fall back to the defaults."""

    text: str = ""
    state: str = ""
    sort: str = "state"
    descending: bool = False
    page: int = 1

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "Choice":
        sort, state = query.get("sort", ""), query.get("state", "")
        digits = query.get("page", "")
        return cls(
            text=query.get("q", "")[:253],
            state=state if state in list(State) else "",
            sort=sort if sort in SORTS else "state",
            descending=query.get("dir") == "desc",
            page=max(1, int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 8 else 1,
        )

    def url(self, **change: object) -> str:
        """The address of the same page with something changed; a change starts at the first page again."""
        wanted = {"q": self.text, "state": self.state, "sort": self.sort, "dir": "desc" if self.descending else ""}
        wanted |= {key: str(value) for key, value in change.items()}
        kept = {key: value for key, value in wanted.items() if value and (key, value) != ("sort", "state")}
        return "/?" + urlencode(kept) if kept else "/"


@dataclass(frozen=True)
class Overview:
    """One page of rows and what stands around it."""

    rows: tuple[Row, ...]
    matching: int
    total: int
    page: int
    pages: int
    states: Mapping[State, int]
    held: int
    lendable: int
    assumed: bool
    unusual: int


def overview(snapshot: Snapshot, choice: Choice) -> Overview:
    """Filter, sort and cut. Rows of all services are needed for the sums and for any order."""
    rows = [row_of(service) for service in snapshot.services.values()]
    wanted = [row for row in rows if _matches(row, choice)]
    wanted.sort(key=lambda row: row.name)
    wanted.sort(key=_order(choice.sort), reverse=choice.descending)
    pages = max(1, -(-len(wanted) // PAGE_SIZE))
    page = min(choice.page, pages)
    return Overview(
        rows=tuple(wanted[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]),
        matching=len(wanted),
        total=len(rows),
        page=page,
        pages=pages,
        states=Counter(row.condition.state for row in rows),
        held=sum(row.service.capacity.gpus for row in rows if row.service.capacity.per_gpu),
        lendable=sum(row.lendable or 0 for row in rows),
        assumed=any(row.service.capacity.assumed for row in rows),
        unusual=sum(bool(row.unusual) for row in rows),
    )


def _matches(row: Row, choice: Choice) -> bool:
    return choice.text.casefold() in row.name.casefold() and choice.state in ("", row.condition.state)


def _order(sort: str) -> Callable[[Row], tuple[bool, float | str]]:
    """Sort keys; what is not known comes last in a rising order."""
    if sort == "name":
        return lambda row: (False, row.name.casefold())
    if sort == "state":
        return lambda row: (False, row.condition.state.rank)
    if sort in ("now", "lend"):
        return lambda row: _none_last(row.now if sort == "now" else row.lendable)
    level, minutes = sort[1:].split("_")
    at = HORIZONS_S.index(int(minutes) * 60)
    return lambda row: _none_last(row.ahead[at].p50 if level == "50" else row.ahead[at].p99)


def _none_last(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0


def row_of(service: Service) -> Row:
    """The row of one service."""
    finite = service.series.value[np.isfinite(service.series.value)]
    now = float(finite[-1]) if len(finite) else None
    pool = own_pool(service)
    return Row(
        service=service,
        condition=condition(service),
        now=now,
        gpus_now=_gpus(service, now),
        ahead=tuple(_ahead(service, horizon_s) for horizon_s in HORIZONS_S),
        lendable=lendable_at_end(pool.curve),
        url=service_url(service.name),
        unusual=_unusual(service),
    )


def _unusual(service: Service) -> str:
    anomaly = service.forecast.anomaly if service.forecast else None
    if anomaly is None:
        return ""
    amounts = f"{amount(anomaly.value)} where {amount(anomaly.expected)} was expected"
    return f"{anomaly.direction} than usual for {span(max(0.0, service.clock_s - anomaly.since_s))}: {amounts}"


def lendable_at_end(curve: Sequence[CurvePoint]) -> int | None:
    return int(curve[-1].lendable // WHOLE_GPU) if curve else None


def _ahead(service: Service, horizon_s: int) -> Ahead:
    horizons = service.forecast.horizons if service.forecast else ()
    demand = next((h.demand for h in horizons if h.horizon_s == horizon_s), None)
    if demand is None or demand.refused:
        return Ahead(horizon_s)
    p50, p99 = demand.quantiles.get(0.5, demand.value), demand.quantiles.get(0.99, demand.high)
    return Ahead(horizon_s, p50, p99, _gpus(service, p50), _gpus(service, p99))


def _gpus(service: Service, demand: float | None) -> int | None:
    per_gpu = service.capacity.per_gpu
    return None if demand is None or not per_gpu else gpus_for(demand, per_gpu)


def service_url(name: str) -> str:
    """The page of a service, whatever its name."""
    return _address("/services", name)


def data_url(name: str) -> str:
    """The document of a service."""
    return _address("/data/services", name)


def _address(path: str, name: str) -> str:
    # Browsers resolve dot segments even when encoded, so these two ask.
    return f"{path}?{urlencode({'name': name})}" if name in (".", "..") else f"{path}/{quote(name, safe='')}"
