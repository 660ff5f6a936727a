"""How a job's throughput grows with GPUs, and up to how many they are worth it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kopt.core.reason import Reason
from kopt.core.workload.split import CurvePoint, ScalingCurve, TrainingJob
from kopt.core.workload.training_plan import PlanError
from kopt.models.parallelism.advice import LIKELY, Advisor, Correction

WORTH = 0.7
"""Marginal efficiency below which more GPUs are not called useful."""
MOST_COUNTS = 32


def scaling_curve(
    advisor: Advisor,
    job: TrainingJob,
    gpus: Sequence[int],
    *,
    threshold: float = WORTH,
    likely: float = LIKELY,
    measured: Mapping[int, float] | None = None,
) -> ScalingCurve:
    """The best split for each count of ``gpus`` with the same global batch; counts on which nothing fits are left out.

    ``measured`` are step times of the job's own runs in seconds, by number of GPUs.

    Raises PlanError for counts or a threshold out of range.
    """
    counts = sorted(set(gpus))
    if not 1 <= len(counts) <= MOST_COUNTS:
        raise PlanError(f"{len(counts)} numbers of GPUs; give from 1 to {MOST_COUNTS}")
    if not 0 < threshold <= 1:
        raise PlanError(f"a marginal efficiency of {threshold:g}; give a share above 0, at most 1")
    points: list[CurvePoint] = []
    missing: list[Reason] = []
    correction, followed = own_runs(advisor, job, measured or {}, likely)
    for count in counts:
        own = replace(job, gpus=count)
        try:
            advice = advisor.advise(own, count=1, likely=likely, correction=correction)
        except PlanError as error:
            missing.append(Reason("COUNT_LEFT_OUT", f"{count} GPUs: {error}.", {"gpus": count}))
            continue
        if not advice.splits:
            missing.append(Reason("COUNT_LEFT_OUT", advice.reasons[0].message, {"gpus": count}))
            continue
        best = advice.splits[0]
        first = points[0] if points else None
        speedup = best.tokens_per_second / first.best.tokens_per_second if first else 1.0
        points.append(CurvePoint(count, best, speedup, _marginal(points, count, best.tokens_per_second)))
    useful = useful_gpus(points, threshold)
    return ScalingCurve(
        job, tuple(points), threshold, useful, (*_reasons(points, useful, threshold), *followed, *missing)
    )


def own_runs(
    advisor: Advisor, job: TrainingJob, measured: Mapping[int, float], likely: float = LIKELY
) -> tuple[Correction, tuple[Reason, ...]]:
    """By what factors the job's own runs differ from what is predicted for the best split on as many GPUs.

    Runs on several numbers of GPUs bend the curve: each says how the job scales where it was measured.

    Raises PlanError for times that cannot be, and for numbers of GPUs on which nothing fits.
    """
    if not measured:
        return Correction(), ()
    factors: dict[int, float] = {}
    for count, seconds in measured.items():
        if not (math.isfinite(seconds) and seconds > 0):
            raise PlanError(f"{seconds} is no step's time in seconds")
        advice = advisor.advise(replace(job, gpus=count), count=1, likely=likely)
        if not advice.splits:
            raise PlanError(f"{count} GPUs: nothing fits there, so that a step's time cannot be compared")
        factors[count] = seconds / advice.splits[0].step_seconds
    factor = math.exp(sum(map(math.log, factors.values())) / len(factors))
    text = (
        f"The job's own runs on {', '.join(map(str, measured))} GPUs take {factor:.2f} times what was predicted; all "
        "times follow them, and their intervals are narrower."
    )
    reason = Reason("OWN_RUNS", text, {"factor": factor, "runs": len(factors)})
    return Correction(factors, advisor.efficiency.own_spread), (reason,)


def useful_gpus(points: Sequence[CurvePoint], threshold: float) -> int | None:
    """The largest count up to which every step is worth it."""
    useful = None
    for point in points:
        if point.marginal_efficiency < threshold:
            break
        useful = point.gpus
    return useful


def _marginal(points: Sequence[CurvePoint], gpus: int, tokens_per_second: float) -> float:
    if not points:
        return 1.0
    first, last = points[0], points[-1]
    each = first.best.tokens_per_second / first.gpus
    return (tokens_per_second - last.best.tokens_per_second) / (gpus - last.gpus) / each


def _reasons(points: Sequence[CurvePoint], useful: int | None, threshold: float) -> tuple[Reason, ...]:
    if useful is None:
        return (Reason("NO_USEFUL_COUNT", "The job fits on none of these numbers of GPUs."),)
    numbers: Mapping[str, float | int | str] = {"gpus": useful, "threshold": threshold}
    following = next((point for point in points if point.gpus > useful), None)
    if following is None:
        text = (
            f"Up to {useful} GPUs, the most that was asked for, each adds {threshold:.0%} or more of what one brings."
        )
        return (Reason("USEFUL_GPUS", text, numbers),)
    text = (
        f"{useful} GPUs are useful: from there to {following.gpus} each adds {following.marginal_efficiency:.0%} of "
        f"what a GPU brings at {points[0].gpus}, less than {threshold:.0%}."
    )
    return (Reason("USEFUL_GPUS", text, numbers),)
