"""How many GPUs a training job is advised to ask for, by its scaling curve: what it asks for, or fewer.

Only counts on which a split divides and fits are points of a curve, so none that the framework refuses is advised.
"""

from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.workload.split import CurvePoint, ScalingCurve


@dataclass(frozen=True)
class CountChoice:
    """``point`` is the advised one; None where nothing is known of the count that is asked for."""

    advised_gpus: int
    point: CurvePoint | None
    reason: Reason


def choose_count(curve: ScalingCurve, requested_gpus: int) -> CountChoice:
    """The largest useful count up to the requested one.

    Where the job fits on no count up to the requested one, or nothing is known there, it keeps what it asks for.
    """
    at = {point.gpus: point for point in curve.points}
    if requested_gpus not in at or curve.useful_gpus is None:
        text = f"Nothing is advised, as no split is known to fit the {requested_gpus} GPUs that it asks for."
        return CountChoice(requested_gpus, None, Reason("COUNT_UNKNOWN", text, {"requested_gpus": requested_gpus}))
    numbers = {"requested_gpus": requested_gpus, "useful_gpus": curve.useful_gpus, "threshold": curve.threshold}
    if curve.useful_gpus >= requested_gpus:
        text = f"All {requested_gpus} GPUs are useful: each brings {curve.threshold:.0%} or more of one of the first."
        return CountChoice(requested_gpus, at[requested_gpus], Reason("ALL_USEFUL", text, numbers))
    best, requested = at[curve.useful_gpus].best, at[requested_gpus].best
    slower = best.step_seconds / requested.step_seconds
    saved = 1 - best.gpu_hours_per_billion_tokens / requested.gpu_hours_per_billion_tokens
    text = (
        f"{curve.useful_gpus} of the {requested_gpus} GPUs are useful: on them a step takes {slower:.2f} times as "
        f"long, for {saved:.0%} fewer GPU-hours."
    )
    more = {"slower": slower, "saved_share": saved}
    return CountChoice(curve.useful_gpus, at[curve.useful_gpus], Reason("FEWER_USEFUL", text, numbers | more))
