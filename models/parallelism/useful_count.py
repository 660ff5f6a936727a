"""The useful number of GPUs of a workload whose trainer's arguments were read: plan to job, counts, curve, advice."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.gpu_count import CountPoint, GpuCountAdvice
from kopt.core.workload.split import CurvePoint, Framework, Matmul, ScalingCurve, TrainingJob, in_words
from kopt.core.workload.training_plan import PlanError, Precision, TrainingPlan
from kopt.formats.gpu_count_patch import NoPatchError, count_patch
from kopt.models.parallelism.advice import Advisor
from kopt.models.parallelism.scaling import WORTH, scaling_curve
from kopt.policies.sizing.gpu_count import CountChoice, choose_count

_FRAMEWORKS = {each.value: each for each in Framework}
_MOST_COUNTS = 8
_USUAL_GPUS_OF_NODE = 8


def job_of_plan(plan: TrainingPlan, gpu: str, gpus: int, gpus_per_node: int | None = None) -> TrainingJob:
    """The job that a plan of ``gpus`` processes describes. Raises PlanError for one that splits are not known of."""
    framework = _FRAMEWORKS.get(plan.framework)
    if framework is None or not plan.trains or plan.adapter is not None:
        raise PlanError(f"how {plan.framework} scales is known for whole language models in {', '.join(Framework)}")
    if plan.parallel.world != gpus:
        raise PlanError(f"its arguments divide the work over {plan.parallel.world} GPUs, not {gpus}")
    matmul = Matmul.FP16 if plan.compute is Precision.FP16 else Matmul.BF16
    batch = plan.micro_batch * plan.accumulation * plan.parallel.data
    of_node = gpus_per_node or min(gpus, _USUAL_GPUS_OF_NODE)
    products = Matmul.FP8 if plan.input_bytes == 1 else matmul
    return TrainingJob(plan.model, gpu, gpus, of_node, plan.sequence, batch, framework, products)


def gpus_per_node_of(gpus: int, nodes: int) -> int | None:
    """By what a launcher says; None where that is not said."""
    return gpus // nodes if nodes > 1 and gpus % nodes == 0 else None


def counts_of(job: TrainingJob) -> list[int]:
    """Numbers of GPUs to compare, up to twice the job's: parts of a node, then whole nodes, by doubling."""
    counts, count = [], 1
    while count < job.gpus_per_node:
        counts.append(count)
        count *= 2
    nodes = 1
    while nodes * job.gpus_per_node <= 2 * job.gpus:
        counts.append(nodes * job.gpus_per_node)
        nodes *= 2
    return sorted({*sorted(counts)[-_MOST_COUNTS:], job.gpus})


def useful_count(
    advisor: Advisor,
    job: TrainingJob,
    *,
    threshold: float = WORTH,
    measured: Mapping[int, float] | None = None,
) -> GpuCountAdvice:
    """The curve around what the job asks for, and how many of these GPUs are useful; without a patch.

    ``measured`` are step times in seconds of the job's own runs by number of GPUs. Raises PlanError for these or a
    ``threshold`` out of range.
    """
    curve = scaling_curve(advisor, job, [*counts_of(job), *(measured or ())], threshold=threshold, measured=measured)
    return _advice(curve, choose_count(curve, job.gpus))


def with_patch(advice: GpuCountAdvice, manifest: Mapping[str, Any] | None) -> GpuCountAdvice:
    """With the JSON Patch of the manifest where fewer GPUs are advised, or why there is none."""
    if not advice.gives_back:
        return advice
    if manifest is None:
        return replace(advice, no_patch="It came without a manifest.")
    try:
        patch = count_patch(manifest, advice.requested_gpus, advice.advised_gpus, advice.framework, advice.settings)
    except NoPatchError as error:
        return replace(advice, no_patch=f"{error}.".capitalize())
    return replace(advice, patch=patch)


def _advice(curve: ScalingCurve, choice: CountChoice) -> GpuCountAdvice:
    job = curve.job
    own = choice.point.best.settings[0] if choice.point is not None else None
    return GpuCountAdvice(
        job.model.name,
        job.gpu,
        job.framework.value,
        job.gpus,
        curve.useful_gpus,
        choice.advised_gpus,
        curve.threshold,
        curve.points[0].best.probability if curve.points else 0.0,
        tuple(_point(point) for point in curve.points),
        (choice.reason, *curve.reasons),
        own.text if own is not None and own.framework is job.framework else "",
    )


def _point(point: CurvePoint) -> CountPoint:
    best = point.best
    return CountPoint(
        point.gpus,
        in_words(best.split),
        best.fit_probability,
        best.step_seconds,
        best.step_low_seconds,
        best.step_high_seconds,
        best.tokens_per_second,
        point.speedup,
        point.marginal_efficiency,
        best.gpu_hours_per_billion_tokens,
    )
