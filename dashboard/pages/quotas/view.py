"""The page of quotas in words, bars and places on a time axis."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.scheduling.queue_standing import QueueHistory, QueueStanding, ReservationStanding
from kopt.core.scheduling.reservation import Phase, Result
from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.dashboard.formatting import NONE, amount, share
from kopt.dashboard.pages.quotas.data import Quotas

MOST_QUEUES, MOST_RESERVATIONS, MOST_DEPTH = 200, 100, 6
WIDTH, HEIGHT = 1000.0, 100.0
DAY_S = 86_400.0
_BEFORE_S, _LONGEST_S = DAY_S, 30 * DAY_S
_BADGES = {
    Phase.ACTIVE.value: "ok",
    Phase.BACKFILLED.value: "fallback",
    Phase.RECLAIMING.value: "stale",
    Phase.REFUSED.value: "refused",
}


@dataclass(frozen=True)
class Part:
    """A rectangle of a bar, in its units of ``WIDTH``."""

    kind: str
    x: float
    width: float
    tooltip: str


@dataclass(frozen=True)
class HistoryPicture:
    """``line`` is the path of use, ``waits`` that of GPUs that were waited for, ``quota_y`` where the quota lies, None
    without one; ``text`` says it in words."""

    line: str
    area: str
    waits: str
    quota_y: float | None
    text: str


@dataclass(frozen=True)
class QueueRow:
    """A queue in words: its parts of GPUs used, borrowed and waited for on one scale with all others."""

    queue: QueueStanding
    indent: int
    quota: str
    limit: str
    guarantee: str
    use: str
    borrowing: str
    pending_gpus: str
    lacks: str
    parts: tuple[Part, ...]
    quota_x: float | None
    history: HistoryPicture | None


@dataclass(frozen=True)
class ReservationRow:
    """``bars`` are its occurrences on the axis, the past ones too."""

    reservation: ReservationStanding
    badge: str
    held: str
    backfilled: str
    kept: str
    bars: tuple[Part, ...]


@dataclass(frozen=True)
class TimeAxis:
    """From ``start_s`` to ``end_s``; ``ticks`` are places of days, ``now_x`` that of now."""

    start_s: float
    end_s: float
    now_x: float
    ticks: tuple[float, ...]

    def x(self, at_s: float) -> float:
        inside = min(max(at_s, self.start_s), self.end_s)
        return round(WIDTH * (inside - self.start_s) / (self.end_s - self.start_s), 2)


@dataclass(frozen=True)
class QuotasPage:
    quotas: Quotas
    rows: tuple[QueueRow, ...]
    omitted: int
    quota: str
    used: str
    pending_gpus: str
    pending: int
    borrowing: str
    axis: TimeAxis | None
    reservations: tuple[ReservationRow, ...]
    omitted_reservations: int


def quotas_page(quotas: Quotas) -> QuotasPage:
    """Everything that the page says."""
    tree = quotas.tree
    leaf_queues = [queue for queue in tree.queues if queue.is_leaf]
    displayed = tree.queues[:MOST_QUEUES]
    scale = max([1, *(max(queue.use + queue.pending_gpus, queue.quota or 0) for queue in displayed)])
    reserved = tree.reservations[:MOST_RESERVATIONS]
    axis = axis_of(reserved, tree.now_s)
    return QuotasPage(
        quotas,
        tuple(_row(queue, scale, quotas.history) for queue in displayed),
        len(tree.queues) - len(displayed),
        format_gpus(sum(queue.quota or 0 for queue in tree.queues if not queue.depth)),
        format_gpus(sum(queue.use for queue in leaf_queues)),
        format_gpus(sum(queue.pending_gpus for queue in leaf_queues)),
        sum(queue.pending for queue in leaf_queues),
        format_gpus(sum(queue.borrowing for queue in leaf_queues)),
        axis,
        () if axis is None else tuple(_reservation(each, axis) for each in reserved),
        len(tree.reservations) - len(reserved),
    )


def axis_of(reservations: Sequence[ReservationStanding], now_s: float) -> TimeAxis | None:
    """From a day before now, or from the earliest occurrence of the last week, to the latest end; None without any."""
    ends = [each.until_s for each in reservations if each.until_s is not None and not each.is_refused]
    if not reservations:
        return None
    past = [result.occurrence.start_s for each in reservations for result in each.results]
    starts = [each.start_s for each in reservations if each.start_s is not None]
    recent = [at_s for at_s in (*past, *starts) if now_s - 7 * DAY_S <= at_s <= now_s]
    start_s = min([now_s - _BEFORE_S, *(at_s - DAY_S / 8 for at_s in recent)])
    end_s = min(max([now_s + DAY_S, *(at_s + DAY_S / 8 for at_s in ends)]), now_s + _LONGEST_S)
    axis = TimeAxis(start_s, end_s, 0.0, ())
    first = int(start_s // DAY_S) + 1
    ticks = tuple(axis.x(day * DAY_S) for day in range(first, int(end_s // DAY_S) + 1))
    return TimeAxis(start_s, end_s, axis.x(now_s), ticks)


def _row(queue: QueueStanding, scale: int, history: QueueHistory | None) -> QueueRow:
    within = queue.use - queue.borrowing
    amounts = (
        ("used", within, "of its quota, used"),
        ("borrowed", queue.borrowing, "borrowed"),
        ("waiting", queue.pending_gpus, "waited for"),
    )
    parts, x = [], 0.0
    for kind, milli, label in amounts:
        width = round(WIDTH * milli / scale, 2)
        if milli:
            parts.append(Part(kind, round(x, 2), width, f"{counted(format_gpus(milli), 'GPU')} {label}"))
        x += width
    return QueueRow(
        queue,
        min(queue.depth, MOST_DEPTH),
        "without bound" if queue.quota is None else format_gpus(queue.quota),
        "" if queue.limit is None else format_gpus(queue.limit),
        format_gpus(queue.guarantee) if queue.guarantee else "",
        format_gpus(queue.use),
        format_gpus(queue.borrowing) if queue.borrowing else NONE,
        format_gpus(queue.pending_gpus) if queue.pending_gpus else NONE,
        format_gpus(queue.lacks) if queue.lacks else "",
        tuple(parts),
        None if queue.quota is None else round(WIDTH * queue.quota / scale, 2),
        None
        if history is None
        else picture(history.used.get(queue.name, ()), history.waited.get(queue.name, ()), queue.quota),
    )


def picture(used: Sequence[float | None], waited: Sequence[float | None], quota: int | None) -> HistoryPicture | None:
    """Use over time below its quota, and what was waited for; None where nothing is known. Hours that are not known are
    a gap."""
    values = [value for value in used if value is not None]
    waits = [value for value in waited if value is not None]
    if not values and not waits:
        return None
    top = 1.05 * max(*values, *waits, quota or 0, WHOLE_GPU)
    runs = _runs(used, top)
    texts = []
    if values:
        mean = amount(sum(values) / len(values) / WHOLE_GPU)
        above = sum(value > quota for value in values) / len(values) if quota is not None else 0.0
        text = f"{mean} GPUs on average, {amount(max(values) / WHOLE_GPU)} at most"
        texts.append(text if quota is None else f"{text}, {share(above, 0)} above its quota")
    if waits:
        often = share(sum(value > 0 for value in waits) / len(waits), 0)
        texts.append(f"waited for {amount(max(waits) / WHOLE_GPU)} at most, in {often} of the hours")
    return HistoryPicture(
        "".join(_path(run) for run in runs),
        "".join(f"M{run[0][0]:.1f} {HEIGHT:.0f}L{_path(run)[1:]}L{run[-1][0]:.1f} {HEIGHT:.0f}Z" for run in runs),
        "".join(_path(run) for run in _runs(waited, top)) if any(waits) else "",
        None if quota is None else HEIGHT * (1 - quota / top),
        "; ".join(texts),
    )


def _runs(amounts: Sequence[float | None], top: float) -> list[list[tuple[float, float]]]:
    """Points of the picture, anew after each gap."""
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(amounts):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((WIDTH * (number + 0.5) / len(amounts), HEIGHT * (1 - value / top)))
    return [run for run in runs if run]


def _path(run: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)


def _reservation(each: ReservationStanding, axis: TimeAxis) -> ReservationRow:
    bars = [
        _bar("past", result.occurrence.start_s, result.occurrence.until_s, axis, _lateness(result))
        for result in each.results
        if result.occurrence.until_s > axis.start_s
    ]
    if each.start_s is not None and each.until_s is not None:
        bars.append(_bar(each.phase.lower(), each.start_s, each.until_s, axis, each.phase))
    on_time = sum(result.late_s is not None and result.late_s <= 60 for result in each.results)
    return ReservationRow(
        each,
        _BADGES.get(each.phase, "pending"),
        f"{each.held} held, {each.used} used" if each.held or each.used else NONE,
        NONE if each.backfilled_share is None else share(each.backfilled_share, 0),
        f"{on_time} of {len(each.results)}" if each.results else NONE,
        tuple(bar for bar in bars if bar.width > 0),
    )


def _lateness(result: Result) -> str:
    if result.late_s is None:
        return "past: never was there"
    return "past: was there in time" if not result.late_s else f"past: {result.late_s:.0f} s late"


def _bar(kind: str, start_s: float, until_s: float, axis: TimeAxis, tooltip: str) -> Part:
    x = axis.x(start_s)
    return Part(kind, x, round(axis.x(until_s) - x, 2), tooltip)
