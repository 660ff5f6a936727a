"""How a job's throughput grows with GPUs, and up to how many they are worth it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kopt.core.reason import Reason
from kopt.core.workload.split import CurvePoint, ScalingCurve, TrainingJob
from kopt.core.workload.training_plan import PlanError
from kopt.models.parallelism.advice import LIKELY, Advisor

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
) -> ScalingCurve:
    """The best split for each count of ``gpus`` with the same global batch; counts on which nothing fits are left out.

    Raises PlanError for counts or a threshold out of range.
    """
    counts = sorted(set(gpus))
    if not 1 <= len(counts) <= MOST_COUNTS:
        raise PlanError(f"{len(counts)} numbers of GPUs; give from 1 to {MOST_COUNTS}")
    if not 0 < threshold <= 1:
        raise PlanError(f"a marginal efficiency of {threshold:g}; give a share above 0, at most 1")
    points: list[CurvePoint] = []
    missing: list[Reason] = []
    for count in counts:
        own = replace(job, gpus=count)
        try:
            advice = advisor.advise(own, count=1, likely=likely)
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
    return ScalingCurve(job, tuple(points), threshold, useful, (*_told(points, useful, threshold), *missing))


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


def _told(points: Sequence[CurvePoint], useful: int | None, threshold: float) -> tuple[Reason, ...]:
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
