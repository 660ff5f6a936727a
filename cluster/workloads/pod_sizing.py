"""A set of equal pods as sizing sees it: the template to ask about, what it asks for, and how that is changed."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import Path, at, items, mapping, text, texts
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.launching.launched import Launched
from kopt.cluster.workloads.launching.launching import launched
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS
from kopt.cluster.workloads.requests.gpus import gpus_of, memory_of, resources_milli
from kopt.cluster.workloads.workload import Workload
from kopt.core.reason import Reason
from kopt.core.units import MIB, WHOLE_GPU, Bytes, MilliGpu
from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import RequestedGpus
from kopt.formats.entrypoint import TORCHRUN_PREFIX
from kopt.formats.gpu_shares import HAMI_MEMORY, KAI_CONTAINER, KAI_MEMORY, VOLCANO_MEMORY, container_memory_mib

_WHOLE_GPUS = ("nvidia.com/gpu", "amd.com/gpu")


@dataclass(frozen=True)
class JobType:
    """Pods that need the same: image, command, request, GPU selected, and pods of the job. What is told of them is told
    for one namespace. Secrets may stand in arguments, so this is sent to the prediction endpoint of the same
    installation and nowhere else."""

    image: str
    command: tuple[str, ...]
    gpus: MilliGpu
    pods: int
    namespace: str = ""
    requested: RequestedGpus = RequestedGpus()
    gpu: str = ""
    executor: Executor = Executor.UNKNOWN
    """What hands shares of a GPU to them."""
    nodes: int = 1
    slots: int | None = None
    """Pods that ``mpirun`` spreads its processes over, and the most on each."""

    @property
    def question(self) -> Object:
        """What ``/v1/sizing`` is asked beside the template."""
        hint = {} if self.executor is Executor.UNKNOWN else {"executor": self.executor.value}
        return {"profile": None, "gpu": None, "namespace": self.namespace or None} | hint | _spread(self)


def _spread(of: "JobType | Launched") -> dict[str, int]:
    """How the endpoint is told where ``mpirun`` starts processes."""
    return {} if of.slots is None else {"nodes": of.nodes, "slots_per_node": of.slots}


def job_type_of(workload: Workload, pods: PodSet, executor: Executor = Executor.UNKNOWN) -> JobType | None:
    """The job type of a set of pods; None where there is no GPU, or no container of theirs to see."""
    runs = launched(workload, pods)
    container = runs.container
    if container is None or not pods.gpus or runs.metadata is None or runs.silent is not None:
        return None
    image = text(container[1], "image")
    command = texts(container[1], "command") + texts(container[1], "args")
    variables = [(text(item, "name"), text(item, "value")) for _, item in items(container[1], "env")]
    # The kubelet, or a shell, fills variables in; torchrun reads its own.
    filled = any("$" in word for word in command)
    command += tuple(f"{name}={value}" for name, value in variables if filled or name.startswith(TORCHRUN_PREFIX))
    selector = mapping(runs.spec, "nodeSelector")
    gpu = next((text(selector, name) for name in GPU_PRODUCT_LABELS if text(selector, name)), "")
    requested, pod_count = requested_gpus(workload, pods), workload.pods
    how = (runs.nodes, runs.slots)
    return (
        JobType(image, command, pods.gpus, pod_count, workload.namespace, requested, gpu, executor, *how)
        if image
        else None
    )


def gpu_container(workload: Workload, pods: PodSet) -> tuple[int, Mapping[str, Any]] | None:
    """Index and content of the container that has the GPUs; the first where they come by annotation."""
    return launched(workload, pods).container


def template_of(workload: Workload, pods: PodSet) -> Object | None:
    """The template as ``/v1/sizing`` takes it, with the object's annotations; None where there is none to be seen."""
    runs = launched(workload, pods)
    if runs.container is None:
        return None
    return {"metadata": {"annotations": {**workload.annotations, **runs.annotations}}, "spec": runs.spec}


def question_of(workload: Workload, pods: PodSet) -> Object | None:
    """What ``/v1/sizing`` is asked about these pods; None where nothing is known of what they run."""
    template, runs = template_of(workload, pods), launched(workload, pods)
    return None if template is None or runs.silent is not None else {"workload": template} | _spread(runs)


def silence(workload: Workload, pods: PodSet) -> Reason | None:
    """Why nothing can be advised whatever the endpoint knows; None where it can be asked."""
    return launched(workload, pods).silent


def role_of(workload: Workload, pods: PodSet) -> str:
    """How a set of pods is called among those of its workload: ``Worker``, a group's or a replicated job's name."""
    if pods.made_from is not None:
        return pods.made_from.name
    path = list(pods.spec or ())
    for depth in range(len(path), 0, -1):
        if isinstance(path[depth - 1], int):
            item = at(workload.document, *path[:depth])
            return text(item, "name") or text(item, "groupName") or str(path[depth - 1])
    for last in ("spec", "template"):
        path = path[:-1] if path[-1:] == [last] else path
    return str(path[-1]) if path else ""


def requested_gpus(workload: Workload, pods: PodSet) -> RequestedGpus:
    """What the container with the GPUs asks for, or the pod by annotation."""
    runs = launched(workload, pods)
    container, own = runs.container, runs.annotations
    milli = resources_milli(mapping(container[1], "resources")) if container is not None else 0
    whole, rest = divmod(milli or pods.gpus, WHOLE_GPU)
    memory = memory_of(own) or memory_of(workload.annotations)
    if not memory and container is not None:
        memory = Bytes(container_memory_mib(container[1]) * MIB)
    fraction = (milli or pods.gpus) / WHOLE_GPU if rest else None
    return RequestedGpus(None if rest else whole, memory // MIB or None, fraction)


def takes_patches(workload: Workload, pods: PodSet) -> bool:
    """Whether a template can be made to ask for something else: it asks for whole GPUs, or by annotation alone.

    Partitions and claims stay as they are, and so do shares of several GPUs.
    """
    runs = launched(workload, pods)
    container = runs.container
    if container is None or runs.resources is None:
        return False
    if _requests_whole(container[1]) or container_memory_mib(container[1]):
        return True
    annotations = {**workload.annotations, **runs.annotations}
    return not resources_milli(mapping(container[1], "resources")) and bool(gpus_of({}, annotations))


def _requests_whole(container: Mapping[str, Any]) -> bool:
    parts = (mapping(container, "resources", part) for part in ("limits", "requests"))
    return any(name in part for part in parts for name in _WHOLE_GPUS)


def write_annotations(patch: JsonPatch, pods: PodSet, wanted: Mapping[str, Any]) -> None:
    """Annotate the template; None removes an annotation."""
    if pods.metadata is not None:
        for name, value in wanted.items():
            path = (*pods.metadata, "annotations", name)
            patch.drop(path) if value is None else patch.put(path, value)


def write_request(patch: JsonPatch, workload: Workload, pods: PodSet, wanted: Mapping[str, Any]) -> None:
    """Make a template ask for what ``policies.sizing.advice.pod_patch`` says."""
    annotations = mapping(wanted, "metadata", "annotations")
    container = gpu_container(workload, pods)
    if KAI_MEMORY in annotations and container is not None and container[0] > 0:
        # KAI gives the share to the first container that it is not told otherwise.
        annotations = {**annotations, KAI_CONTAINER: text(container[1], "name")}
    write_annotations(patch, pods, annotations)
    if "spec" in wanted and pods.spec is not None:
        patch.put((*pods.spec, "schedulerName"), wanted["spec"]["schedulerName"])
    limits = mapping(wanted, "resources", "limits")
    if limits:
        # A container without GPUs gets some only where these are the share that its pod asked for by annotation.
        is_share = HAMI_MEMORY in limits or VOLCANO_MEMORY in limits
        write_resources(patch, workload, pods, limits, adds=is_share)


def write_resources(
    patch: JsonPatch, workload: Workload, pods: PodSet, limits: Mapping[str, str | None], *, adds: bool = False
) -> None:
    """Give the container other GPUs in place of whole ones: limits, and requests where they name them, as both must be
    equal. One that asks for none stays as it is, unless ``adds``."""
    runs = launched(workload, pods)
    container = runs.container
    if container is None or runs.resources is None or not (adds or _requests_whole(container[1])):
        return
    now = mapping(container[1], "resources")
    changed = changed_resources(now, limits)
    if changed["limits"] or "limits" in now:
        patch.put(runs.resources, changed)
    _write_repeated(patch, runs, limits)


def changed_resources(now: Mapping[str, Any], limits: Mapping[str, str | None]) -> Object:
    """A ``resources`` block with other limits, and requests where these name them; None removes one."""
    changed: Object = copy.deepcopy(dict(now))
    changed["limits"] = dict(mapping(now, "limits"))
    for name, amount in limits.items():
        for part in ("limits", "requests"):
            amounts = changed.get(part)
            if amount is None and isinstance(amounts, dict):
                amounts.pop(name, None)
            elif amount is not None and isinstance(amounts, dict) and (part == "limits" or name in amounts):
                # As it stands where it says the same: a number is not replaced by its text.
                amounts[name] = amounts[name] if str(amounts.get(name)) == amount else amount
    return changed


def _write_repeated(patch: JsonPatch, runs: Launched, limits: Mapping[str, str | None]) -> None:
    """The same number of whole GPUs wherever else the object names it, as a number or as its text."""
    count = next((limits[name] for name in _WHOLE_GPUS if limits.get(name)), None)
    for path in runs.repeated if count is not None else ():
        is_text = isinstance(at(patch.document, *path), str)
        patch.put(path, count if is_text else int(count or 0))


def annotations_path(workload: Workload, pods: PodSet) -> Path | None:
    """Where the annotations of a set of pods are written: their template's, or the object's where it has none."""
    return launched(workload, pods).metadata
