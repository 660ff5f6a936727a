"""``kopt.parallelism(model, …)``: how to split a training job over GPUs; ``kopt.scaling(model, …)``: over how many.

    import kopt
    advice = kopt.parallelism("Llama-3-70B", gpu="H100", gpus=64, sequence=8192, global_batch=256)
    print(advice.splits[0].split, advice.splits[0].step_seconds)

``kopt parallelism -o json`` prints ``to_dict()``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.settings import Settings
from kopt.core.workload.language_models import find_language_model, shape_of_config
from kopt.core.workload.split import Framework, Matmul, ScalingCurve, SplitAdvice, TrainingJob
from kopt.core.workload.training_plan import ModelShape, PlanError

if TYPE_CHECKING:
    from kopt.models.parallelism.advice import Advisor

_TRAYS = ("GB200", "GB300")
_USUAL_GPUS_OF_NODE, _GPUS_OF_TRAY = 8, 4
LIKELY, WORTH = 0.95, 0.7


def parallelism(
    model: str | Mapping[str, Any] | ModelShape,
    *,
    gpu: str,
    gpus: int,
    sequence: int,
    global_batch: int,
    gpus_per_node: int | None = None,
    framework: str = "megatron",
    matmul: str = "bf16",
    nics: str = "",
    price: float | None = None,
    count: int = 3,
    likely: float = LIKELY,
    measured: Mapping[int, float] | None = None,
    advisor: "Advisor | None" = None,
    settings: Settings | None = None,
) -> SplitAdvice:
    """The ``count`` best splits of a training job that fit with probability ``likely`` or more.

    ``model`` is a name, a decoded config.json, or a shape; ``matmul`` bf16, fp16 or fp8; ``nics`` the network cards of
    a node (8x NDR400 IB); ``price`` money for a GPU and hour; ``measured`` are step times of the job's own runs in
    seconds, by number of GPUs, which all answers follow. Raises PlanError for what cannot be split, UnknownGpuError and
    UnknownModelError for names that are not known.
    """
    from kopt.models.parallelism.scaling import own_runs

    job = job_of(model, gpu, gpus, sequence, global_batch, gpus_per_node, framework, matmul, nics, price)
    if not 0 < likely < 1 or not 1 <= count <= 100:
        raise PlanError(f"a probability of {likely:g} and {count} answers; give one between 0 and 1, and 1 to 100")
    selected = advisor or _advisor(settings)
    correction, followed = own_runs(selected, job, measured or {}, likely)
    advice = selected.advise(job, count=count, likely=likely, correction=correction)
    return replace(advice, reasons=(*advice.reasons, *followed))


def scaling(
    model: str | Mapping[str, Any] | ModelShape,
    *,
    gpu: str,
    gpus: Sequence[int],
    sequence: int,
    global_batch: int,
    gpus_per_node: int | None = None,
    framework: str = "megatron",
    matmul: str = "bf16",
    nics: str = "",
    price: float | None = None,
    likely: float = LIKELY,
    threshold: float = WORTH,
    measured: Mapping[int, float] | None = None,
    advisor: "Advisor | None" = None,
    settings: Settings | None = None,
) -> ScalingCurve:
    """The best split on each number of ``gpus`` with the same batch, and up to how many GPUs each is worth it.

    ``threshold`` is the marginal efficiency below which more are not called useful. Raises as ``parallelism`` does.
    """
    from kopt.models.parallelism.scaling import scaling_curve

    if not gpus:
        raise PlanError("no number of GPUs is given")
    if not 0 < likely < 1:
        raise PlanError(f"a probability of {likely:g}; give one between 0 and 1")
    job = job_of(model, gpu, max(gpus), sequence, global_batch, gpus_per_node, framework, matmul, nics, price)
    for count in (*gpus, *(measured or ())):
        replace(job, gpus=count)
    return scaling_curve(
        advisor or _advisor(settings), job, gpus, threshold=threshold, likely=likely, measured=measured
    )


def job_of(
    model: str | Mapping[str, Any] | ModelShape,
    gpu: str,
    gpus: int,
    sequence: int,
    global_batch: int,
    gpus_per_node: int | None,
    framework: str,
    matmul: str,
    nics: str,
    price: float | None,
) -> TrainingJob:
    """The question with names looked up. Raises PlanError, UnknownGpuError or UnknownModelError."""
    shape = _shape(model)
    name = find_gpu(gpu).name
    usual = _GPUS_OF_TRAY if name.startswith(_TRAYS) else _USUAL_GPUS_OF_NODE
    of_node = min(gpus, usual) if gpus_per_node is None else gpus_per_node
    try:
        used, products = Framework(framework), Matmul(matmul)
    except ValueError as error:
        raise PlanError(f"{error}; frameworks: {', '.join(Framework)}; formats: {', '.join(Matmul)}") from None
    return TrainingJob(shape, name, gpus, of_node, sequence, global_batch, used, products, nics, price)


def _shape(model: str | Mapping[str, Any] | ModelShape) -> ModelShape:
    if isinstance(model, ModelShape):
        return model
    return find_language_model(model) if isinstance(model, str) else shape_of_config(model)


def _advisor(settings: Settings | None) -> "Advisor":
    from kopt.models.parallelism.advice import Advisor

    return Advisor.load(settings)
