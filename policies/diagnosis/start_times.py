"""When a workload starts: futures drawn from the run times of what is before it, played through in the queue's order.

Each draw gives every running workload a remaining time, and everything that waits a run time, out of its quantiles. In
one draw all of them tend to be long, in another short.
What will be submitted later is left out: in the queue's order it comes behind, unless its priority is higher.
"""

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.units import counted
from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.policies.diagnosis.futures import MOST_STRATIFIED, Futures
from kopt.policies.diagnosis.queue_model import QueuedGpus, QueueModel, Rooms, RunningGpus
from kopt.policies.diagnosis.run_time_columns import UNKNOWN, Floats, Rows, RunTimeColumns

DRAWS, FEWEST = 200, 60
_MOST_TIMES = 300_000
"""Of all draws together: among thousands of workloads fewer draws say as much."""
_FIRST = 128
_NONE: Floats = np.empty(0)
_MORE = 16
"""Times as many workloads, where those whose times were drawn leave it open when it starts."""


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
    columns = RunTimeColumns.of(run_times)
    rows = columns.rows(model.running)
    unknown = [model.running[index].name for index in np.flatnonzero(rows == UNKNOWN).tolist()]
    unknown += [queued.name for queued in model.queue if queued.name not in columns and queued.name != name]
    array = _starts(model, name, columns, rows, rng, draws)
    draws = len(array)
    p50_s, p90_s = np.quantile(array, (0.5, 0.9), method="higher")
    reason = _unknown(unknown, bound=bool(np.isfinite(p50_s))) if unknown else None
    if not np.isfinite(p50_s):
        never = Reason("START_NEVER", "It does not fit even when everything that runs has ended.")
        return StartEstimate(None, None, draws, reason or never)
    return StartEstimate(float(p50_s), float(p90_s) if np.isfinite(p90_s) else None, draws, reason)


def _starts(
    model: QueueModel, name: str, columns: RunTimeColumns, rows: Rows, rng: np.random.Generator, draws: int
) -> Floats:
    """Seconds until the start, (draws,). ``rows``: of what runs.

    Of thousands that run few end before it starts, and only these need times. Those that may end first get them; a draw
    in which it starts later than another could end is played again, with what ends before that start as well.
    """
    timed = np.flatnonzero(rows != UNKNOWN)
    ahead = [queued for queued in model.queue if queued.name != name and queued.name in columns]
    queue = [queued.name for queued in ahead]
    number = len(timed) + len(queue)
    draws = min(draws, max(FEWEST, _MOST_TIMES // number)) if number else 1
    order = timed[np.argsort(columns.shortest_s[rows[timed]], kind="stable")]
    shortest_s = columns.shortest_s[rows[order]]
    # Below what the first so many leave open; ends of one moment belong together.
    limits_s = np.append(np.nextafter(shortest_s, -np.inf), np.inf)
    rooms, futures = Rooms(model), Futures(columns, rng, draws)
    of_queue = futures.seconds(columns.rows(ahead))
    last = min(len(order), MOST_STRATIFIED)
    first = [model.running[index] for index in order[:last].tolist()]
    times = futures.seconds(rows[order[:last]])
    result = np.empty(draws)

    def played(draw: int, others: Sequence[RunningGpus], seconds: Floats) -> float:
        of_draw = dict(zip(queue, of_queue[:, draw].tolist(), strict=True))
        every = np.concatenate([times[:, draw], seconds])
        return _start(model, name, rooms, [*first, *others], every, of_draw)

    for draw in range(draws):
        result[draw] = played(draw, (), _NONE)
    many, known_s = None, np.full(draws, limits_s[last])
    # As far as the times that were drawn tell it, others end before it starts.
    while (is_open := result > known_s).any():
        many = many or futures.many(rows[order[len(first) :]])
        latest_s = result[is_open].max()
        last = min(int(np.searchsorted(shortest_s, latest_s, side="right")), _MORE * last, len(order))
        known_s[is_open] = np.minimum(result, limits_s[last])[is_open]
        ending, in_draws, seconds = many.before(last - len(first), np.where(is_open, known_s, -1.0))
        bounds = np.searchsorted(in_draws, np.arange(draws + 1))
        for draw in np.flatnonzero(is_open).tolist():
            part = slice(bounds[draw], bounds[draw + 1])
            if part.start == part.stop and result[draw] <= known_s[draw]:
                continue
            others = [model.running[index] for index in order[len(first) + ending[part]].tolist()]
            result[draw] = played(draw, others, seconds[part])
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
