"""The page of efficiency in words, and in columns on a time axis."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from kopt.core.hardware.pools import ClusterPools
from kopt.core.workload.gpu_hours import ClusterStep, GpuHourHistory, GpuHours
from kopt.dashboard.formatting import clock, share
from kopt.dashboard.pages.efficiency.data import Efficiency
from kopt.dashboard.pages.efficiency.pools import PoolPicture, pool_picture
from kopt.policies.efficiency.groups import covered, pool_hours, wasteful_first, workload_hours
from kopt.policies.efficiency.health_index import HealthIndex, Spent, health_index, spent

BY: Mapping[str, str] = {
    "kind": "kind of job",
    "namespace": "namespace",
    "team": "team",
    "queue": "queue",
    "pool": "pool",
}
"""By the word of the address."""
OF_CLUSTER = frozenset({"team", "pool"})
"""What no series says: it is read from the cluster."""
MOST_ROWS, MOST_COLUMNS = 200, 96
WIDTH, HEIGHT = 1000.0, 100.0
Bins = dict[int, list[ClusterStep]]
"""Steps by column; columns without any are not there."""
_STYLES: Mapping[str, str] = {
    "used": "used",
    "held and unused": "unused",
    "held and not measured": "unmeasured",
    "free while work waited": "wanted",
    "free": "free",
    "unavailable": "unavailable",
}
"""By the names of ``Spent.by_name``."""
_MEANINGS: Mapping[str, str] = {
    "used": "a kernel ran",
    "held and unused": "pods had them, and no kernel ran",
    "held and not measured": "pods had them, and nothing says how busy they were",
    "free while work waited": "there was work for them, which did not fit or may not have them",
    "free": "nobody waited for them",
    "unavailable": "broken, or on nodes that are cordoned or not ready",
}


@dataclass(frozen=True)
class Part:
    """A kind of GPU-hours, with the style of its colour."""

    name: str
    style: str
    gpu_hours: str
    share: str
    meaning: str


@dataclass(frozen=True)
class Block:
    """A rectangle of a column, in units of the picture."""

    style: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Column:
    """A span of time: what its GPUs did, and in words. Each block covers the lower part of the one before, down to the
    ground, so that no seam shows between them."""

    blocks: tuple[Block, ...]
    tooltip: str


@dataclass(frozen=True)
class Row:
    """``filled`` is the efficiency in units of a picture that is 100 wide."""

    name: str
    gpus: str
    requested: str
    allocated: str
    used: str
    efficiency: str
    filled: float
    unused: str
    waited: str
    measured: str


@dataclass(frozen=True)
class EfficiencyPage:
    """``index`` is None where GPUs were not measured, ``line`` the path of the index over time."""

    efficiency: Efficiency
    index: str | None = None
    factors: tuple[tuple[str, str, str], ...] = ()
    """Name, share, formula."""
    parts: tuple[Part, ...] = ()
    columns: tuple[Column, ...] = ()
    line: str = ""
    begin: str = ""
    end: str = ""
    missing: str = ""
    """Why there are no rows by what was chosen."""
    rows: tuple[Row, ...] = ()
    count: int = 0
    covered: str = ""
    over_months: PoolPicture = PoolPicture()

    @property
    def summary(self) -> str:
        """The picture in words."""
        return ", ".join(f"{part.name} {part.share}" for part in self.parts)


def efficiency_page(efficiency: Efficiency, window: str, by: str) -> EfficiencyPage:
    """``window`` and ``by`` are words of the address."""
    return replace(_of_window(efficiency, window, by), over_months=pool_picture(efficiency.days))


def _of_window(efficiency: Efficiency, window: str, by: str) -> EfficiencyPage:
    history = efficiency.histories.get(window)
    if history is None:
        return EfficiencyPage(efficiency)
    groups = wasteful_first(_groups(history, efficiency.pools or ClusterPools(), by))
    total = spent(history.steps, history.step_s / 3600)
    health = health_index(total)
    missing = _missing(efficiency, by)
    bins = {} if health is None else _bins(history)
    width = WIDTH / _column_count(history)
    return EfficiencyPage(
        efficiency,
        None if health is None or health.index is None else f"{health.index:.1f}",
        () if health is None else _factors(health),
        () if health is None else _parts(total),
        _columns(bins, width),
        _line(bins, width),
        clock(_begin_s(history)),
        clock(history.steps[-1].at_s),
        missing,
        () if missing else tuple(_row(name, hours, history.recorded_s / 3600) for name, hours in groups[:MOST_ROWS]),
        len(groups),
        covered(history),
    )


def _groups(history: GpuHourHistory, pools: ClusterPools, by: str) -> dict[str, GpuHours]:
    """As ``kopt efficiency --by`` has them."""
    if by == "pool":
        return pool_hours(history, pools.of_nodes)
    if by == "team":
        return workload_hours(history, lambda workload: pools.teams.get(workload.namespace, ""))
    return workload_hours(history, attrgetter(by))


def _missing(efficiency: Efficiency, by: str) -> str:
    """Why there are no rows by what is read from the cluster; empty where there are."""
    pools = efficiency.pools
    if by not in OF_CLUSTER:
        return ""
    if by == "pool" and efficiency.hides:
        return "What pools have is shown to those who may list the pods of every namespace."
    if pools is None:
        return f"These pages have no cluster, so they do not know what is in which {by}."
    if not pools.ready:
        return "The cluster is being read."
    return ""


def _factors(health: HealthIndex) -> tuple[tuple[str, str, str], ...]:
    return (
        ("Available", share(health.available), "1 - unavailable / installed"),
        ("Served", share(health.served), "allocated / (allocated + free while work waited)"),
        ("Computing", share(health.computing), "used / measured"),
    )


def _parts(total: Spent) -> tuple[Part, ...]:
    return tuple(
        Part(name, _STYLES[name], f"{hours:,.1f}", share(hours / total.installed), _MEANINGS[name])
        for name, hours in total.by_name.items()
    )


def _begin_s(history: GpuHourHistory) -> float:
    """Where the time axis begins: a window that was not recorded as a whole is drawn with its gaps."""
    return history.steps[-1].at_s - history.window_s + history.step_s


def _bins(history: GpuHourHistory) -> Bins:
    begin_s, count, columns = _begin_s(history), _count(history), _column_count(history)
    result: Bins = {}
    for step in history.steps:
        position = min(max(round((step.at_s - begin_s) / history.step_s), 0), count - 1)
        result.setdefault(position * columns // count, []).append(step)
    return result


def _count(history: GpuHourHistory) -> int:
    """How many steps the window would have if all of it had been recorded."""
    return max(1, int(history.window_s // history.step_s))


def _column_count(history: GpuHourHistory) -> int:
    return min(MOST_COLUMNS, _count(history))


def _columns(bins: Bins, width: float) -> tuple[Column, ...]:
    """As high as their installed GPUs, on the scale of the highest."""
    means = {index: spent(steps, 1 / len(steps)) for index, steps in bins.items()}
    most = max((mean.installed for mean in means.values()), default=0.0) or 1.0
    return tuple(_column(mean, index * width, width, most, bins[index][0].at_s) for index, mean in means.items())


def _column(mean: Spent, x: float, width: float, most: float, at_s: float) -> Column:
    blocks, y = list[Block](), HEIGHT
    for name, gpus in mean.by_name.items():
        y = max(0.0, y - HEIGHT * gpus / most)
        if gpus > 0:
            blocks.insert(0, Block(_STYLES[name], round(x, 2), round(y, 2), round(width, 2), round(HEIGHT - y, 2)))
    amounts = ", ".join(f"{name} {gpus:,.1f}" for name, gpus in mean.by_name.items() if gpus)
    return Column(tuple(blocks), f"{clock(at_s)}: of {mean.installed:,.0f} GPUs {amounts}")


def _line(bins: Bins, width: float) -> str:
    """The health index of each column; a gap lifts the pen."""
    path, last = "", -2
    for index, steps in sorted(bins.items()):
        health = health_index(spent(steps, 1.0))
        if health is None or health.index is None:
            continue
        path += f"{'L' if index == last + 1 else 'M'}{(index + 0.5) * width:.1f} {HEIGHT - health.index:.1f}"
        last = index
    return path


def _row(name: str, hours: GpuHours, recorded_h: float) -> Row:
    return Row(
        name,
        f"{hours.allocated / recorded_h:,.1f}",
        f"{hours.requested:,.1f}",
        f"{hours.allocated:,.1f}",
        f"{hours.used:,.1f}",
        share(hours.efficiency, 0),
        round(100 * (hours.efficiency or 0.0), 1),
        f"{hours.unused:,.1f}",
        f"{hours.waited:,.1f}",
        share(hours.measured_share, 0),
    )
