"""Which GPUs to reserve for a queue by the forecast of its demand: windows of hours, in the shape of its jobs.

While a reservation lasts, all jobs of its queue count as its users. So what is reserved is all that the queue is
expected to demand then, and not only what it lacks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.policies.reservations.forecast import HOUR_S, HourlyForecast

_GAP_HOURS = 1
"""Two windows that are no further apart are one: GPUs would hardly be given back between them."""
_UNUSED = 0.25
"""Of what is reserved, by the forecast itself."""
_MOST_NODES = 512


@dataclass(frozen=True)
class Outlook:
    """A queue in a pool. Of each hour from ``start_s`` (Unix seconds) on: the forecast of its demand, what is ``free``
    for it without a reservation by then, and what is ``reserved`` for it already; thousandths of a GPU.

    ``limit``: the most that it may use, None for no limit; ``room``: nodes of the pool that hold ``gpus_per_node``.
    """

    queue: str
    pool: str
    start_s: float
    forecast: HourlyForecast
    free: Sequence[float]
    reserved: Sequence[float]
    gpus_per_node: int
    room: int
    limit: int | None = None


@dataclass(frozen=True)
class Window:
    """What to reserve. ``middle`` and ``upper`` are the forecast at its highest, ``free`` what is free at its lowest;
    thousandths of a GPU."""

    start_s: float
    until_s: float
    nodes: int
    gpus_per_node: int
    middle: float
    upper: float
    free: float
    reason: Reason

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def propose(outlook: Outlook, earliest_s: float, latest_s: float = math.inf) -> tuple[list[Window], Reason]:
    """Windows that begin from ``earliest_s`` until ``latest_s``, and a sentence about all of them together."""
    short = [need > free for need, free in zip(outlook.forecast.upper, outlook.free, strict=True)]
    if all(need > free for need, free in zip(outlook.forecast.middle, outlook.free, strict=True)):
        return [], _always(outlook)
    first = max(0, math.ceil((earliest_s - outlook.start_s) / HOUR_S))
    after = int(min(len(short), max(0.0, (latest_s - outlook.start_s) / HOUR_S)))
    spans = [part for span in _spans(short, first, after) for part in _parts(outlook, *span)]
    windows = [window for span in spans if (window := _window(outlook, *span)) is not None]
    return windows, _summary(outlook, any(short[first:after]), windows)


def _spans(short: Sequence[bool], first: int, after: int) -> list[tuple[int, int]]:
    """The first hour of each span that is short, and the one after its last."""
    result: list[tuple[int, int]] = []
    for hour in range(first, after):
        if short[hour] and result and hour - result[-1][1] <= _GAP_HOURS:
            result[-1] = (result[-1][0], hour + 1)
        elif short[hour]:
            result.append((hour, hour + 1))
    return result


def _parts(outlook: Outlook, first: int, after: int) -> list[tuple[int, int]]:
    """A span in parts, as what is reserved is one amount for all hours of a window: a part ends where going on would
    leave too much of it unused."""
    each, result, begin = outlook.gpus_per_node * WHOLE_GPU, list[tuple[int, int]](), first
    for hour in range(first, after):
        # What rounding to whole nodes leaves unused no other part would save, and a gap is kept on purpose.
        nodes = [
            math.ceil(outlook.forecast.upper[at] / each)
            for at in range(begin, hour + 1)
            if outlook.forecast.upper[at] > outlook.free[at]
        ]
        reserved = max(nodes) * len(nodes)
        if reserved - sum(nodes) > _UNUSED * reserved:
            result.append((begin, hour))
            begin = hour
    return [*result, (begin, after)]


def _window(outlook: Outlook, first: int, after: int) -> Window | None:
    """None for one that is reserved already, or may not be."""
    hours = range(first, after)
    wanted = max(outlook.forecast.upper[hour] - outlook.reserved[hour] for hour in hours)
    most = outlook.room * outlook.gpus_per_node * WHOLE_GPU
    if outlook.limit is not None:
        most = min(most, outlook.limit)
    each = outlook.gpus_per_node * WHOLE_GPU
    nodes = min(math.ceil(wanted / each), int(most // each), _MOST_NODES)
    if nodes < 1:
        return None
    middle, upper = (max(row[hour] for hour in hours) for row in (outlook.forecast.middle, outlook.forecast.upper))
    free = min(outlook.free[hour] for hour in hours)
    level = outlook.forecast.quantile
    text = (
        f"It will demand up to {_gpus(upper)} with a probability of {level:.0%} (median {_gpus(middle)}); without a "
        f"reservation {_gpus(free)} are free for it."
    )
    if nodes * each < wanted:
        text += f" More than {nodes * outlook.gpus_per_node} cannot be reserved, by its quota and the pool's nodes."
    numbers = {"upper": upper, "middle": middle, "free": free, "quantile": level}
    return Window(
        outlook.start_s + first * HOUR_S,
        outlook.start_s + after * HOUR_S,
        nodes,
        outlook.gpus_per_node,
        middle,
        upper,
        free,
        Reason("RESERVATION_PROPOSED", text, numbers),
    )


def _always(outlook: Outlook) -> Reason:
    low, high = min(outlook.forecast.middle), max(outlook.forecast.middle)
    shape = (
        f"The forecast is flat, at {_gpus(high)}" if high - low < WHOLE_GPU else f"Its median is {_gpus(low)} at least"
    )
    text = f"{shape}, and above what is free at every hour: that takes quota, no reservation (kopt queues advise)."
    return Reason("RESERVATION_ALWAYS_SHORT", text, {"low": low, "high": high})


def _summary(outlook: Outlook, is_short: bool, windows: Sequence[Window]) -> Reason:
    low, high = min(outlook.forecast.upper), max(outlook.forecast.upper)
    if windows:
        text = f"{counted(len(windows), 'reservation')} of up to {max(window.gpus for window in windows)} GPUs."
        return Reason("RESERVATION_PROPOSED", text)
    if is_short:
        text = "What it will lack is reserved already, or beyond what it may use."
        return Reason("RESERVATION_NOTHING_LEFT", text, {"high": high})
    margin = min(free - need for need, free in zip(outlook.forecast.upper, outlook.free, strict=True))
    subject = "The forecast is flat: it" if high - low < WHOLE_GPU else "It"
    text = f"{subject} will demand up to {_gpus(high)}, at the tightest hour {_gpus(margin)} below what is free for it."
    return Reason("RESERVATION_NOT_NEEDED", text, {"high": high, "margin": margin})


def _gpus(milli: float) -> str:
    return counted(format_gpus(round(milli / 100) * 100), "GPU")


def borrowable(
    lendable: Sequence[tuple[int, int | None, Sequence[float] | None]], borrowing_limit: int | None, hours: int
) -> list[float]:
    """What a queue may borrow in each hour. ``lendable``: of each other queue of its cohort its quota, its lending
    limit, and the forecast of its own demand; of one that is not known nothing is borrowed."""
    result = [0.0] * hours
    for quota, lending_limit, upper in lendable:
        for hour in range(hours) if upper is not None else ():
            spare = max(0.0, quota - upper[hour]) if upper is not None else 0.0
            result[hour] += spare if lending_limit is None else min(spare, lending_limit)
    return result if borrowing_limit is None else [min(each, borrowing_limit) for each in result]
