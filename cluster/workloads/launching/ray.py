"""RayJob: in which pods its entrypoint runs, and whether their GPUs are its own.

Ray starts the entrypoint on a node with ``entrypointNumGpus`` free GPUs, by default on the head with none. All other
GPUs of the cluster go to tasks and actors that the script asks for (``ScalingConfig(num_workers=…, use_gpu=True)``,
Ray Serve, …): how many these are is in the script, and fewer GPUs would leave them waiting. Sources: ray.io/v1 of
KubeRay v1.5 and Ray 2.40, ``python/ray/dashboard/modules/job/job_manager.py``.
"""

from dataclasses import replace

from kopt.cluster.objects.fields import at, count, mapping, text
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.launching.launched import Launched, as_written
from kopt.cluster.workloads.workload import Workload
from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU
from kopt.formats.entrypoint import Entrypoint, EntrypointError, what_runs

_NUM_GPUS = ("spec", "entrypointNumGpus")
_CLUSTER = ("spec", "rayClusterSpec")


def ray_job(workload: Workload, pods: PodSet) -> Launched:
    """Its pods with the entrypoint as their command where it runs in them and has all of their GPUs."""
    result = as_written(workload.document, pods)
    container = result.container
    if container is not None and (at(container[1], "command") or at(container[1], "args")):
        # What a template starts itself, beside Ray, is read as of any pod.
        return result
    if (why := _silent(workload, pods)) is not None:
        return replace(result, silent=why)
    command = ["/bin/sh", "-c", text(workload.document, "spec", "entrypoint")]
    started = (*(pods.spec or ())[:-2], "rayStartParams", "num-gpus")
    also = (started,) if at(workload.document, *started) is not None else ()
    return replace(result.running(command=command, args=None), repeated=(_NUM_GPUS, *also))


def _silent(workload: Workload, pods: PodSet) -> Reason | None:
    """Why these pods' GPUs are not known to be the entrypoint's; None where they are."""
    document, reserved = workload.document, _reserved(workload)
    if at(document, "spec", "entrypointResources"):
        return _of_script("the entrypoint may run on any node with the resources that it asks for")
    if not reserved:
        return _of_script("the entrypoint runs on the head and reserves no GPU (entrypointNumGpus)")
    hosts = [each for each in workload.pod_sets if each.gpus >= reserved * WHOLE_GPU]
    if pods not in hosts or len(hosts) > 1:
        return _of_script("the entrypoint may run in several of its groups, or in another one")
    if _most_pods(workload, pods) > 1 or pods.gpus != reserved * WHOLE_GPU:
        return _of_script("the entrypoint reserves only some of the GPUs of this group")
    entrypoint = _entrypoint(text(document, "spec", "entrypoint"))
    if entrypoint is None or entrypoint.nodes > 1 or not entrypoint.states_processes:
        return _of_script("the entrypoint does not say how many processes there are")
    return None


def _reserved(workload: Workload) -> int:
    """Whole GPUs that the entrypoint reserves; 0 for none, and for a part of one."""
    number = at(workload.document, *_NUM_GPUS)
    whole = isinstance(number, int | float) and not isinstance(number, bool) and number == int(number)
    return int(number) if whole and 0 < number <= 1 << 10 else 0


def _most_pods(workload: Workload, pods: PodSet) -> int:
    """How many pods a group may have; a cluster that scales by itself has up to ``maxReplicas``."""
    if at(workload.document, *_CLUSTER, "enableInTreeAutoscaling") is not True or pods.spec is None:
        return pods.pods
    group = mapping(workload.document, *pods.spec[:-2])
    return max(pods.pods, count(group, "maxReplicas", default=pods.pods) * count(group, "numOfHosts"))


def _entrypoint(line: str) -> Entrypoint | None:
    try:
        return what_runs(line, lambda _: None)
    except EntrypointError:
        return None


def _of_script(why: str) -> Reason:
    text_ = (
        f"Nothing is advised, as {why}: how many GPUs Ray hands out is said in its script "
        "(ScalingConfig, num_gpus), which cannot be changed from outside."
    )
    return Reason("RAY_WORKERS", text_)
