"""What is left of a job: its quantiles at the start, and how long such jobs went on that had run as long.

A model says how long a job runs from what is known when it starts. That it still runs is said best by runs like it that
were longer: a class of which one job in ten lasts a week has a week left after a day, whatever its median. Both are
averaged in log seconds, the runs by more the more of them were longer. Before it runs all of them were. What bounds the
interval is left to the model then, whose outer quantiles follow what ended; of a job that runs, it is the lower and the
higher one of both: where they are apart, neither is sure, and means of bounds hold less than either.
"""

import math
from collections.abc import Sequence

import numpy as np

from kopt.core.workload.run_time import LEVELS
from kopt.features.job_history import ENDED_LEVELS, Array, EndedRuns
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.steps import remaining_of

LEAST_LONGER = 5
"""Runs of a group that were longer; with fewer a wider group is asked."""
MODEL_WEIGHT = 10.0
"""The model counts as much as so many longer runs. Losses are within 3 % from 5 to 20: docs/benchmarks/run-times.md."""
_SHORTEST_S = 1.0


def remaining_while_running(log_times: LogTimes, elapsed_seconds: float, ended: Sequence[EndedRuns]) -> Array:
    """Quantiles (7,) of what is left, in seconds. ``log_times``: of the whole run, as it was answered at its start;
    ``ended``: runs like it, the nearest group first."""
    by_model = remaining_of(log_times, elapsed_seconds)
    by_runs, longer = remaining_of_longer(elapsed_seconds, ended)
    if by_runs is None:
        return by_model
    weight = longer / (longer + MODEL_WEIGHT)
    logs = [np.log(np.maximum(_SHORTEST_S, each)) for each in (by_model, by_runs)]
    result: Array = np.exp((1 - weight) * logs[0] + weight * logs[1])
    bounds = [by_model] if elapsed_seconds <= 0 else [by_model, by_runs]
    result[0] = min(result[1], *(each[0] for each in bounds))
    result[-1] = max(result[-2], *(each[-1] for each in bounds))
    return result


def remaining_of_longer(elapsed_seconds: float, ended: Sequence[EndedRuns]) -> tuple[Array | None, float]:
    """Quantiles (7,) of what was left, in seconds, of those runs of the nearest group with enough that were longer, and
    how many these are; None where no group has enough."""
    log_elapsed = math.log(max(_SHORTEST_S, elapsed_seconds))
    for group in ended:
        shorter = _share_up_to(group, log_elapsed)
        longer = group.number * (1 - shorter)
        if longer >= LEAST_LONGER:
            levels = shorter + (1 - shorter) * np.array(LEVELS)
            result: Array = np.exp(np.interp(levels, ENDED_LEVELS, group.log_seconds)) - elapsed_seconds
            return np.maximum(0.0, result), longer
    return None, 0.0


def _share_up_to(group: EndedRuns, log_seconds: float) -> float:
    """Of the runs, those that were no longer; 1 without runs."""
    if not group.log_seconds:
        return 1.0
    # The last of equal quantiles: np.interp takes the rightmost where values repeat.
    return float(np.interp(log_seconds, group.log_seconds, ENDED_LEVELS))
