"""What is left of a job whose log shows its steps: steps left by what a step takes."""

import math

import numpy as np

from kopt.core.workload.run_time import LEVELS, StepProgress
from kopt.features.job_history import Array
from kopt.models.runtime.distribution import LogTimes

_LEAST_SPREAD, _MOST_SPREAD = 0.03, 1.0
"""Standard deviation of the logarithm of what is left: validation, checkpoints and slower phases come on top."""
_FEW_SPREAD = 0.3
"""… by the root of how many steps were timed."""
_NORMAL = {0.05: -1.645, 0.1: -1.282, 0.25: -0.674, 0.5: 0.0, 0.75: 0.674, 0.9: 1.282, 0.95: 1.645}


def remaining_seconds(progress: StepProgress, at_s: float) -> Array:
    """Quantiles (7,) of what is left at ``at_s``, in seconds.

    The median of the timed steps holds against one that waited for a checkpoint, their mean holds all of it; the mean
    of the last steps is what was really spent per step, so it is taken, and the spread is that between the halves of
    what was timed, as steps drift rather than scatter.
    """
    times = np.array(progress.step_seconds)
    per_step = float(times.mean())
    remaining_steps = progress.steps - progress.step
    remaining_s = max(0.0, remaining_steps * per_step - max(0.0, at_s - progress.at_s))
    spread = _FEW_SPREAD / math.sqrt(len(times))
    if len(times) >= 4:
        halves = times[: len(times) // 2].mean(), times[len(times) // 2 :].mean()
        spread += abs(math.log(halves[1] / halves[0]))
    spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, spread))
    result: Array = max(1.0, remaining_s) * np.exp(spread * np.array([_NORMAL[level] for level in LEVELS]))
    return result


def remaining_of(log_times: LogTimes, elapsed_seconds: float) -> Array:
    """Quantiles (7,) of what is left by the distribution of whole runs, in seconds."""
    logs = log_times.quantiles_after(math.log(max(1.0, elapsed_seconds)), LEVELS)
    result: Array = np.maximum(0.0, np.exp(np.array(logs)) - elapsed_seconds)
    return result
