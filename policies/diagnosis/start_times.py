"""When a workload starts: futures drawn from the run times of what is before it, played through in the queue's order.

Each draw gives every running workload a remaining time, and everything that waits a run time, out of its quantiles. In
one draw all of them tend to be long, in another short.
What will be submitted later is left out: in the queue's order it comes behind, unless its priority is higher.
"""

import heapq
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.units import counted
from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.policies.diagnosis.queue_model import QueuedGpus, QueueModel, Rooms, RunningGpus

Floats = NDArray[np.float64]
DRAWS, FEWEST = 200, 60
_MOST_TIMES = 300_000
"""Of all draws together: among thousands of workloads fewer draws say as much."""
_FIRST = 128
SHARED, SHARED_ALIKE = 0.5, 0.3
"""Of the variance of how long workloads run against what is expected of their like: what those that run at a time have
in common, and what those of one queue and size have besides. Whoever submits together errs together; without it sums
over a queue are far too sure."""
_SCORES = np.linspace(-6.0, 6.0, 4801)
_CDF = np.array([0.5 * math.erfc(-score / math.sqrt(2)) for score in _SCORES])
"""Of the normal distribution."""
_FIRST_DRAWN, _MORE_DRAWN = 256, 4


def start_times(
    model: QueueModel,
    name: str,
    run_times: Mapping[str, RunTimeQuantiles],
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> StartEstimate:
    """p50 and p90 of the seconds until the workload of this name, one of ``model.queue``, starts.

    ``run_times``: the time that is left of what runs, the run time of what waits. What has none there is taken to stay
    for ever: the estimate is then an upper bound, or, where the start depends on it, none; both are said in ``reason``.
    ``draws`` become fewer, down to ``FEWEST``, where thousands of workloads are before it.
    """
    if all(queued.name != name for queued in model.queue):
        return StartEstimate(reason=Reason("NOT_QUEUED", f"{name} is in no queue whose order is known."))
    others: Iterable[RunningGpus | QueuedGpus] = itertools.chain(model.running, model.queue)
    unknown = [other.name for other in others if other.name not in run_times and other.name != name]
    array = _starts(model, name, run_times, rng, draws)
    draws = len(array)
    p50_s, p90_s = np.quantile(array, (0.5, 0.9), method="higher")
    reason = _unknown(unknown, bound=bool(np.isfinite(p50_s))) if unknown else None
    if not np.isfinite(p50_s):
        never = Reason("START_NEVER", "It does not fit even when everything that runs has ended.")
        return StartEstimate(None, None, draws, reason or never)
    return StartEstimate(float(p50_s), float(p90_s) if np.isfinite(p90_s) else None, draws, reason)


def _starts(
    model: QueueModel, name: str, run_times: Mapping[str, RunTimeQuantiles], rng: np.random.Generator, draws: int
) -> Floats:
    """Seconds until the start, (draws,).

    Of thousands that run few end before it starts, and only these need times. Those that may end first get them; a draw
    in which it starts later than another could end is played again, with the same times and those of more of them.
    """
    # No tuples: new objects by the thousand have Python look for cycles in all of a cluster's.
    timed = [workload for workload in model.running if workload.name in run_times]
    quantiles = [run_times[workload.name] for workload in timed]
    queue = [queued.name for queued in model.queue if queued.name != name and queued.name in run_times]
    number = len(timed) + len(queue)
    draws = min(draws, max(FEWEST, _MOST_TIMES // number)) if number else 1
    shortest = np.array([each.seconds[0] for each in quantiles])
    order = np.argsort(shortest, kind="stable")
    shortest = shortest[order]
    rooms, futures = Rooms(model), _Futures(rng, draws)
    of_queue = futures.times([run_times[other] for other in queue], np.arange(draws))
    result, undone, times = np.full(draws, np.inf), np.arange(draws), np.empty((0, draws))
    running: list[RunningGpus] = []
    while True:
        # As many as could end before the latest start, as far as those that have times tell it.
        last = len(running)
        wanted = int(np.searchsorted(shortest, result[undone].max(), side="right"))
        first = min(len(timed), wanted, max(_FIRST_DRAWN, _MORE_DRAWN * last))
        part = order[last:first].tolist()
        running += [timed[index] for index in part]
        more = futures.times([quantiles[index] for index in part], undone)
        times = np.vstack([times, more])
        for column, draw in enumerate(undone.tolist()):
            of_draw = dict(zip(queue, of_queue[:, draw].tolist(), strict=True))
            result[draw] = _start(model, name, rooms, running, times[:, column], of_draw)
        is_open = result[undone] > shortest[first] if first < len(timed) else np.zeros(len(undone), np.bool_)
        if not is_open.any():
            return result
        undone, times = undone[is_open], times[:, is_open]


class _Futures:
    """Times of workloads in draws. In each draw a part of their levels is shared by all, and a part by those that are
    alike, and each stays uniform (a Gaussian copula with factors; Li, On Default Correlation, J. of Fixed Income
    2000)."""

    def __init__(self, rng: np.random.Generator, draws: int) -> None:
        self._rng, self._draws = rng, draws
        self._of_like: dict[Hashable, Floats] = {}
        self._shared = math.sqrt(SHARED) * self._scores(1, draws)[0]

    def times(self, quantiles: Sequence[RunTimeQuantiles], draws: NDArray[np.int64]) -> Floats:
        """Seconds, (workloads, draws). To be asked for once of each."""
        levels = self._levels([each.like for each in quantiles], draws)
        # Those of thousands are mostly one object, which is found faster than its values are compared.
        by_levels = {id(each.levels): each.levels for each in quantiles}
        if len(by_levels) == 1:
            return _at_levels(quantiles[0].levels, [each.seconds for each in quantiles], levels)
        result = np.empty(levels.shape)
        for key, of_group in by_levels.items():
            rows = [index for index, each in enumerate(quantiles) if id(each.levels) == key]
            result[rows] = _at_levels(of_group, [quantiles[index].seconds for index in rows], levels[rows])
        return result

    def _levels(self, likes: Sequence[Hashable], draws: NDArray[np.int64]) -> Floats:
        rows = {like: row for row, like in enumerate(dict.fromkeys(likes))}
        of_like = np.array([self._shared_by(like)[draws] for like in rows]).reshape(-1, len(draws))
        own = np.sqrt([1 - SHARED - (SHARED_ALIKE if like is not None else 0.0) for like in rows])
        index = [rows[like] for like in likes]
        scores = own[index, None] * self._scores(len(likes), len(draws)) + self._shared[draws] + of_like[index]
        cells = np.rint((scores - _SCORES[0]) * ((len(_SCORES) - 1) / (_SCORES[-1] - _SCORES[0]))).astype(np.intp)
        result: Floats = _CDF.take(cells, mode="clip")
        return result

    def _shared_by(self, like: Hashable) -> Floats:
        if like is None:
            return np.zeros(self._draws)
        if like not in self._of_like:
            self._of_like[like] = math.sqrt(SHARED_ALIKE) * self._scores(1, self._draws)[0]
        return self._of_like[like]

    def _scores(self, count: int, draws: int) -> Floats:
        """Normal, (count, draws)."""
        if count > _FIRST_DRAWN:
            return self._rng.standard_normal((count, draws))
        # Spread evenly over the draws, which halves the noise of so few.
        strata = self._rng.permuted(np.tile(np.arange(float(draws)), (count, 1)), axis=1)
        result: Floats = np.interp((strata + self._rng.random(strata.shape)) / draws, _CDF, _SCORES)
        return result


def _at_levels(at: Sequence[float], seconds: Sequence[Sequence[float]], wanted: Floats) -> Floats:
    """Seconds (n, draws) at ``wanted`` levels, linear between the quantiles (n, levels)."""
    levels, quantiles = np.array(at), np.array(seconds)
    if len(levels) == 1:
        return np.broadcast_to(quantiles, wanted.shape)
    right = np.searchsorted(levels, wanted, side="right").clip(1, len(levels) - 1)
    share = ((wanted - levels[right - 1]) / np.diff(levels)[right - 1]).clip(0.0, 1.0)
    low, high = np.take_along_axis(quantiles, right - 1, axis=1), np.take_along_axis(quantiles, right, axis=1)
    result: Floats = low + share * (high - low)
    return result


class _Ends:
    """What ends next: of what runs, and of what was started in this draw."""

    def __init__(self, running: Sequence[RunningGpus], times: Floats) -> None:
        self._running, self._order = running, _earliest(times)
        self._next = next(self._order, None)
        self._started: list[tuple[float, int, RunningGpus]] = []
        self._count = 0

    def add(self, at_s: float, workload: RunningGpus) -> None:
        self._count += 1
        heapq.heappush(self._started, (at_s, self._count, workload))

    @property
    def next_s(self) -> float:
        """When; infinite if nothing ends any more."""
        started_s = self._started[0][0] if self._started else float("inf")
        return min(started_s, self._next[0]) if self._next is not None else started_s

    def pop(self) -> RunningGpus:
        if self._next is None or (self._started and self._started[0][0] < self._next[0]):
            return heapq.heappop(self._started)[2]
        index = self._next[1]
        self._next = next(self._order, None)
        return self._running[index]


def _earliest(times: Floats) -> Iterator[tuple[float, int]]:
    """In order; most often the first few decide, and thousands need not be sorted."""
    if len(times) > 2 * _FIRST:
        first = np.argpartition(times, _FIRST)[:_FIRST]
        for index in first[np.argsort(times[first], kind="stable")].tolist():
            yield float(times[index]), index
        rest = np.ones(len(times), dtype=np.bool_)
        rest[first] = False
        others = np.flatnonzero(rest)
        order = others[np.argsort(times[others], kind="stable")]
    else:
        order = np.argsort(times, kind="stable")
    yield from zip(times[order].tolist(), order.tolist(), strict=True)


def _start(
    model: QueueModel,
    name: str,
    rooms: Rooms,
    running: Sequence[RunningGpus],
    times: Floats,
    run_times: Mapping[str, float],
) -> float:
    """Seconds until the start in one draw; infinite where it never comes."""
    rooms.reset()
    now_s, ends = 0.0, _Ends(running, times)
    # The next of the queue is last.
    queue = list(reversed(model.queue))
    shapes = _shapes(queue, model.strict)
    while True:
        if any(rooms.fits(queued) for queued in shapes):
            blocked: list[QueuedGpus] = []
            refused = set[Hashable]()
            while queue:
                queued = queue[-1]
                # In one pass there is only ever less room: what is like one that did not fit does not fit either.
                started = None if queued.shape in refused else rooms.start(queued)
                if started is None and model.strict:
                    break
                queue.pop()
                if started is None:
                    refused.add(queued.shape)
                    blocked.append(queued)
                    continue
                if queued.name == name:
                    return now_s
                if queued.name in run_times:
                    ends.add(now_s + run_times[queued.name], started)
            queue += reversed(blocked)
            shapes = _shapes(queue, model.strict)
        now_s = ends.next_s
        if now_s == float("inf"):
            return now_s
        while ends.next_s <= now_s:
            rooms.end(ends.pop())


def _shapes(queue: Sequence[QueuedGpus], strict: bool) -> Sequence[QueuedGpus]:
    """One of each shape that may be next; without room for any of these nothing starts."""
    return list({queued.shape: queued for queued in (queue[-1:] if strict else queue)}.values())


def _unknown(names: list[str], *, bound: bool) -> Reason:
    several = counted(len(names), "workload")
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if bound:
        text = f"The run times of {several} are not known ({listed}); they are taken to stay, so it may start sooner."
    else:
        text = f"When it starts depends on {several} whose run times are not known: {listed}."
    return Reason("RUN_TIME_UNKNOWN", text, {"workloads": len(names)})
