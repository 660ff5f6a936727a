"""Formulas' findings in the shape of a code estimate."""

from kopt.core.sizing import MemoryBreakdown, Method, RankMemory, TraceCoverage
from kopt.core.training import TrainingPlan
from kopt.core.units import Bytes
from kopt.models.sizing.analytic import AnalyticEstimate, estimate_plan, features_of, reserved_bytes
from kopt.models.sizing.code import CodeEstimate


def from_plan(
    plan: TrainingPlan, *, gpu_bytes: int | None = None, measured: MemoryBreakdown | None = None
) -> CodeEstimate:
    """The estimate of a plan's worst pipeline stage; ``gpu_bytes`` is the GPU's usable memory.

    ``measured`` is the formulas' answer for another process than the worst, where that one was measured.
    """
    found = estimate_plan(plan, gpu_bytes=gpu_bytes)
    worst = measured or found.worst
    allocated = Bytes(int(worst.tensors))
    inputs = {f"plan_{name}": float(value) for name, value in features_of(plan, worst).items()}
    return CodeEstimate(
        Method.ANALYTIC, TraceCoverage.FULL, allocated, reserved_bytes(plan, worst), worst, inputs,
        per_rank=_ranks(found), spread=max(found.high_share, 1 / found.low_share),
        assumptions=tuple(reason.message for reason in plan.unknown), reasons=found.reasons,
    )  # fmt: skip


def _ranks(found: AnalyticEstimate) -> tuple[RankMemory, ...]:
    """The first rank of every pipeline stage, where there are several."""
    if len(found.per_stage) < 2:
        return ()
    stride = max(1, found.plan.parallel.world // len(found.per_stage))
    return tuple(RankMemory(n * stride, reserved_bytes(found.plan, one), one) for n, one in enumerate(found.per_stage))
