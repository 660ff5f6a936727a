"""Whether the replay of the cluster as it is agrees with the waits that were recorded."""

from collections.abc import Mapping, Sequence

import numpy as np

from kopt.core.reason import Reason
from kopt.core.units import counted
from kopt.simulator.what_if.answer import ReplayCheck
from kopt.simulator.what_if.jobs import PastJob
from kopt.simulator.what_if.outcome import Days, Floats, Indexes, error_by_day
from kopt.simulator.what_if.replay import Order

MOST_ERROR = 0.4
"""Of a replay whose answer can be trusted; `python -m benchmarks what-if` shows what becomes of others."""
LEAST_DAYS, LEAST_WAITED, MOST_EXCESS, MOST_HELD = 7, 30, 0.02, 0.8
_WAITED_S = 60.0
"""Shorter waits are the scheduler's own."""


def select_order(jobs: Sequence[PastJob], days: Days, starts_s: Mapping[Order, Floats]) -> Order:
    """The one whose replay agrees best on the first half of the days; the first where no waits are recorded."""
    if len(starts_s) == 1:
        return next(iter(starts_s))
    errors = {order: _error(jobs, days, start_s, is_later=False) for order, start_s in starts_s.items()}
    return min(errors, key=lambda order: errors[order])


def check(
    jobs: Sequence[PastJob], days: Days, order: Order, start_s: Floats, excess: float, fitting_s: float
) -> ReplayCheck:
    """``start_s`` of each job in the replay of the cluster as it is, NaN where it never fits. ``excess`` and
    ``fitting_s`` are those of the ``Record``."""
    of_days = _in_days(jobs, days)
    recorded = [jobs[number] for number in of_days if jobs[number].waited_s is not None]
    waited = sum((job.waited_s or 0.0) > _WAITED_S for job in recorded)
    summed_s = sum(job.waited_s or 0.0 for job in recorded)
    error = _error(jobs, days, start_s, is_later=True) if recorded else None
    held = sum(job.held_s for job in recorded) / summed_s if summed_s else 0.0
    every_s = sum(job.waited_s or 0.0 for job in jobs)
    fitting = fitting_s / every_s if every_s else 0.0
    reason = _reason(days, waited, error, held, fitting, excess)
    return ReplayCheck(
        order.value,
        days.count,
        len(of_days),
        waited,
        error,
        held if recorded else None,
        fitting if recorded else None,
        reason,
    )


def _reason(days: Days, waited: int, error: float | None, held: float, fitting: float, excess: float) -> Reason:
    if error is None:
        text = "When jobs started is not recorded beside their submission, so nothing says how well the replay agrees."
        return Reason("WHAT_IF_WAITS_UNKNOWN", text)
    if excess > MOST_EXCESS:
        text = f"{excess:.0%} of the GPU time of jobs is above the size of their pools: say how many GPUs they had."
        return Reason("WHAT_IF_POOL_TOO_SMALL", text)
    if days.count < LEAST_DAYS or waited < LEAST_WAITED:
        needed = f"{LEAST_WAITED} on {LEAST_DAYS} days are needed"
        text = f"{waited} jobs on {counted(days.count, 'day')} waited for a minute or more; {needed}."
        return Reason("WHAT_IF_TOO_FEW_WAITS", text)
    stays = f"{held:.0%} of what was waited passed while enough GPUs were free for all that waited, and stays"
    if held > MOST_HELD or (error > MOST_ERROR and fitting > MOST_HELD):
        text = f"{fitting:.0%} of what was waited passed while enough GPUs were free for the job, {held:.0%} for all."
        return Reason("WHAT_IF_WAITS_NOT_FOR_GPUS", f"GPUs are hardly what jobs waited for: {text}")
    agreement = f"replayed waits of a day differ from the recorded ones by {error:.0%} of what was waited for GPUs"
    if error > MOST_ERROR:
        text = f"As the cluster is, {agreement}; above {MOST_ERROR:.0%} changes of waits do not hold. {stays}."
        return Reason("WHAT_IF_REPLAY_OFF", text)
    return Reason("WHAT_IF_REPLAY_HOLDS", f"As the cluster is, {agreement}; {stays}.")


def _in_days(jobs: Sequence[PastJob], days: Days) -> Indexes:
    day = days.of(np.array([job.submitted_s for job in jobs]))
    return np.flatnonzero((day >= 0) & (day < days.count))


def _error(jobs: Sequence[PastJob], days: Days, start_s: Floats, *, is_later: bool) -> float:
    """On one half of the days."""
    numbers = [n for n in _in_days(jobs, days) if jobs[n].waited_s is not None and not np.isnan(start_s[n])]
    submitted = np.array([jobs[number].submitted_s for number in numbers])
    recorded = np.array([jobs[number].waited_s or 0.0 for number in numbers])
    day = days.of(submitted)
    held = np.array([jobs[number].held_s for number in numbers])
    half = (day >= days.count / 2) == is_later
    return error_by_day(recorded[half], (start_s[numbers] - submitted)[half], held[half], day[half])
