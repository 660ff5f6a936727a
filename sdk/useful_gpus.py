"""``kopt.useful_gpus``: how many of a training's GPUs are worth it, from its command or its manifest."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.settings import Settings
from kopt.core.workload.gpu_count import GpuCountAdvice
from kopt.core.workload.training_plan import PlanError
from kopt.formats.entrypoint import EntrypointError, pod_entrypoint, what_runs
from kopt.formats.pod_request import gpu_selected, requested_gpus
from kopt.formats.processes import NO_REQUEST, count_processes
from kopt.formats.trainers import read_plan

if TYPE_CHECKING:
    from kopt.models.parallelism.advice import Advisor

_WORTH = 0.7


def useful_gpus(
    workload: str | Sequence[str] | Mapping[str, Any],
    *,
    gpu: str = "",
    world_size: int | None = None,
    threshold: float = _WORTH,
    measured: Mapping[int, float] | None = None,
    advisor: "Advisor | None" = None,
    settings: Settings | None = None,
) -> GpuCountAdvice:
    """The scaling curve of a command, its words, or a pod's manifest, and the JSON Patch for what is useful of it.

    Arguments alone are read, no file. ``gpu`` is the manifest's own where it selects one. ``measured`` are seconds of a
    step in runs of your own by number of GPUs; ``threshold`` is the marginal efficiency from which a GPU is useful.
    Raises PlanError where the arguments do not say how it scales, and UnknownGpuError.
    """
    from kopt.models.parallelism.advice import Advisor
    from kopt.models.parallelism.useful_count import gpus_per_node_of, job_of_plan, useful_count, with_patch

    manifest = workload if isinstance(workload, Mapping) else None
    try:
        if isinstance(workload, Mapping):
            entrypoint, requested = pod_entrypoint(workload, _no_file), requested_gpus(workload)
        else:
            command = workload if isinstance(workload, str) else list(workload)
            entrypoint, requested = what_runs(command, _no_file), NO_REQUEST
    except EntrypointError as error:
        raise PlanError(str(error)) from error
    model = gpu or (gpu_selected(manifest) if manifest is not None else None)
    if not model:
        raise PlanError("nothing says which GPU it is for; give gpu=")
    processes = count_processes(entrypoint, _no_file, requested, world_size)
    plan = read_plan(entrypoint, _no_file, world_size=processes.total)
    total = processes.world_size
    job = job_of_plan(plan, find_gpu(model).name, total, gpus_per_node_of(total, entrypoint.nodes))
    advice = useful_count(advisor or Advisor.load(settings), job, threshold=threshold, measured=measured)
    return with_patch(advice, manifest)


def _no_file(_: str) -> None:
    """No path of the command is followed."""
