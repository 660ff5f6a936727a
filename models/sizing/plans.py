"""Formulas' findings in the shape of a code estimate."""

from dataclasses import replace

from kopt.core.units import Bytes, format_bytes
from kopt.core.workload.sizing import MemoryBreakdown, Method, RankMemory, TraceCoverage
from kopt.core.workload.training_plan import TrainingPlan
from kopt.models.sizing.analytic import AnalyticEstimate, estimate_plan, features_of, reserved_bytes
from kopt.models.sizing.code import CodeEstimate

SHORTER, LEAST_TOKENS = 8, 64
"""Data sets of instructions are mostly far shorter than the length that is allowed."""

_UNEVEN = 1.15
"""By so much further up may a mixture need memory whose experts lie on several GPUs: of fifteen packed examples of
ms-swift, which say what a GPU held, the formulas read 16 to 19 % low in the median of either half."""
_SURELY = 1.1
_ROUTING = (
    "tokens are taken to go evenly to experts on different GPUs; they seldom do, so the interval reaches further up"
)


def from_plan(
    plan: TrainingPlan, *, gpu_bytes: int | None = None, measured: MemoryBreakdown | None = None
) -> CodeEstimate:
    """The estimate of a plan's worst pipeline stage; ``gpu_bytes`` is the GPU's usable memory.

    ``measured`` is the formulas' answer for another process than the worst, where that one was measured.
    """
    analytic_estimate = estimate_plan(plan, gpu_bytes=gpu_bytes)
    worst = measured or analytic_estimate.worst
    allocated = Bytes(int(worst.tensors))
    inputs = {f"plan_{name}": float(value) for name, value in features_of(plan, worst).items()}
    too_small = _too_small_a_share(plan, worst, gpu_bytes)
    return CodeEstimate(
        Method.ANALYTIC,
        TraceCoverage.FULL,
        allocated,
        reserved_bytes(plan, worst),
        worst,
        inputs,
        per_rank=_ranks(analytic_estimate),
        spread=max(analytic_estimate.high_share, 1 / analytic_estimate.low_share),
        assumptions=(*(reason.message for reason in plan.unknown), *([_ROUTING] if _routes_unevenly(plan) else [])),
        warnings=too_small,
        reasons=analytic_estimate.reasons,
        most_share=None if plan.serving is None or too_small else plan.serving.reserve_share,
        below=plan.model.doubt * _shorter(plan, worst, gpu_bytes),
        above=plan.model.doubt * (_UNEVEN if _routes_unevenly(plan) else 1.0),
    )


def _too_small_a_share(plan: TrainingPlan, worst: MemoryBreakdown, gpu_bytes: int | None) -> tuple[str, ...]:
    """What to say of an engine whose share of the GPU holds neither its weights nor one sequence; else nothing."""
    served = plan.serving
    share = served.reserve_share if served is not None else None
    if served is None or share is None or gpu_bytes is None or worst.tensors <= share * gpu_bytes:
        return ()
    # The formulas are a few per cent off.
    fails = "would not" if worst.tensors > _SURELY * share * gpu_bytes else "may not"
    needed, has = format_bytes(int(worst.tensors)), format_bytes(int(share * gpu_bytes))
    return (
        f"the server {fails} start: weights, working memory and one sequence of {served.context_tokens:,} tokens "
        f"need {needed} on each GPU, and it may take {has}; use more GPUs for each replica, a larger share, a shorter "
        "context or quantised weights",
    )


def _routes_unevenly(plan: TrainingPlan) -> bool:
    """Whether the rank with the busiest experts may get any number of tokens."""
    experts = plan.model.experts
    return experts is not None and not experts.capacity_factor and plan.parallel.expert > 1 and plan.serving is None


def _shorter(plan: TrainingPlan, full: MemoryBreakdown, gpu_bytes: int | None) -> float:
    """How many times less batches of a part of the allowed length need, where their length is not known."""
    if not plan.varying:
        return 1.0
    short = replace(plan, sequence=max(LEAST_TOKENS, plan.sequence // SHORTER))
    return max(1.0, full.total / estimate_plan(short, gpu_bytes=gpu_bytes).worst.total)


def _ranks(analytic_estimate: AnalyticEstimate) -> tuple[RankMemory, ...]:
    """The first rank of every pipeline stage, where there are several."""
    if len(analytic_estimate.per_stage) < 2:
        return ()
    stride = max(1, analytic_estimate.plan.parallel.world // len(analytic_estimate.per_stage))
    return tuple(
        RankMemory(n * stride, reserved_bytes(analytic_estimate.plan, memory_breakdown), memory_breakdown)
        for n, memory_breakdown in enumerate(analytic_estimate.per_stage)
    )
