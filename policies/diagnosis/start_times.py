"""When a workload starts: futures drawn from the run times of what is before it, played through in the queue's order.

Each draw gives every running workload a remaining time, and everything that waits a run time, out of its quantiles.
What will be submitted later is left out: in the queue's order it comes behind, unless its priority is higher.
"""

import heapq
from collections.abc import Mapping

import numpy as np

from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.scheduling.run_time import RunTimeQuantiles
from kopt.core.units import counted
from kopt.policies.diagnosis.queue_model import QueueModel, Rooms, RunningGpus

DRAWS = 200


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
    """
    if all(workload.name != name for workload in model.queue):
        return StartEstimate(reason=Reason("NOT_QUEUED", f"{name} is in no queue whose order is known."))
    names = [running.name for running in model.running]
    names += [queued.name for queued in model.queue if queued.name != name]
    unknown = [other for other in names if other not in run_times]
    columns = {other: _drawn(run_times[other], rng, draws) for other in names if other in run_times}
    rooms = Rooms(model)
    # Where nothing is drawn, all draws are alike.
    array = np.array([_start(model, name, columns, rooms, number) for number in range(draws if columns else 1)])
    p50_s, p90_s = np.quantile(array, (0.5, 0.9), method="higher")
    reason = _unknown(unknown, bound=bool(np.isfinite(p50_s))) if unknown else None
    if not np.isfinite(p50_s):
        never = Reason("START_NEVER", "It does not fit even when everything that runs has ended.")
        return StartEstimate(None, None, draws, reason or never)
    return StartEstimate(float(p50_s), float(p90_s) if np.isfinite(p90_s) else None, draws, reason)


def _drawn(quantiles: RunTimeQuantiles, rng: np.random.Generator, draws: int) -> list[float]:
    # Levels are spread evenly over the draws, which halves the noise of so few.
    levels = (rng.permutation(draws) + rng.random(draws)) / draws
    seconds: list[float] = np.interp(levels, quantiles.levels, quantiles.seconds).tolist()
    return seconds


def _start(model: QueueModel, name: str, columns: Mapping[str, list[float]], rooms: Rooms, number: int) -> float:
    """Seconds until the start in one draw; infinite where it never comes."""
    rooms.reset()
    now_s, order = 0.0, 0
    ends: list[tuple[float, int, RunningGpus]] = []
    for running in model.running:
        if running.name in columns:
            ends.append((columns[running.name][number], order, running))
            order += 1
    heapq.heapify(ends)
    # The next of the queue is last.
    queue = list(reversed(model.queue))
    while True:
        blocked = []
        while queue:
            started = rooms.start(queue[-1])
            if started is None and model.strict:
                break
            queued = queue.pop()
            if started is None:
                blocked.append(queued)
                continue
            if queued.name == name:
                return now_s
            if queued.name in columns:
                heapq.heappush(ends, (now_s + columns[queued.name][number], order, started))
                order += 1
        queue += reversed(blocked)
        if not ends:
            return float("inf")
        now_s, _, ended = heapq.heappop(ends)
        rooms.end(ended)
        while ends and ends[0][0] <= now_s:
            rooms.end(heapq.heappop(ends)[2])


def _unknown(names: list[str], *, bound: bool) -> Reason:
    several = counted(len(names), "workload")
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if bound:
        text = f"The run times of {several} are not known ({listed}); they are taken to stay, so it may start sooner."
    else:
        text = f"When it starts depends on {several} whose run times are not known: {listed}."
    return Reason("RUN_TIME_UNKNOWN", text, {"workloads": len(names)})
