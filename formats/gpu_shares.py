"""Shares of a GPU in the terms of what hands them out: KAI Scheduler, HAMi, and Volcano's vGPU plugin.

Memory is in MiB everywhere. Names and rules are those of the projects' own sources:

* KAI, ``pkg/common/constants/constants.go`` and ``pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go``
  (NVIDIA/KAI-Scheduler v0.12): annotations of the pod, either ``gpu-memory`` or ``gpu-fraction``, and no whole GPU in
  any container beside them. Without ``gpu-fraction-container-name`` the first container has the share.
* HAMi, ``pkg/device/nvidia/device.go`` and ``charts/hami/values.yaml`` (Project-HAMi/HAMi 4707fb0): limits of the
  container, ``nvidia.com/gpu`` virtual GPUs with ``nvidia.com/gpumem`` of memory each.
* Volcano, ``deployments/static/volcano-vgpu-device-plugin.yml`` (Project-HAMi/volcano-vgpu-device-plugin 4fb76ba):
  limits of the container, ``volcano.sh/vgpu-number`` in place of whole GPUs, with ``volcano.sh/vgpu-memory`` each.

Their limits on compute (``nvidia.com/gpucores``, ``volcano.sh/vgpu-cores``) are left to the user: advice is on memory.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kopt.core.workload.executor import Executor

SCHEDULERS = MappingProxyType(
    {Executor.KAI: "kai-scheduler", Executor.HAMI: "hami-scheduler", Executor.VOLCANO: "volcano"}
)
"""``schedulerName`` of the pods of each. HAMi's own webhook writes its name; the others leave that to the user."""
KAI_MEMORY, KAI_FRACTION = "gpu-memory", "gpu-fraction"
KAI_DEVICES, KAI_CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
WHOLE_GPU_RESOURCE = "nvidia.com/gpu"
"""All three hand out shares of NVIDIA's GPUs."""
HAMI_MEMORY = "nvidia.com/gpumem"
VOLCANO_NUMBER, VOLCANO_MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
_COUNTS = MappingProxyType({HAMI_MEMORY: WHOLE_GPU_RESOURCE, VOLCANO_MEMORY: VOLCANO_NUMBER})
_EXECUTORS = MappingProxyType({HAMI_MEMORY: Executor.HAMI, VOLCANO_MEMORY: Executor.VOLCANO})


def share_patch(executor: Executor, memory_mib: int) -> dict[str, Any]:
    """A merge patch that makes a pod with one GPU ask ``executor`` for a share of that much memory.

    ``metadata`` and ``spec`` are those of the pod (or its template), ``resources`` of the container with the GPU; null
    removes what would contradict. KAI's pods need the label ``kai.scheduler/queue`` as well, which is not added here.
    Raises ValueError for no memory, and where nothing hands out shares.
    """
    if memory_mib <= 0:
        raise ValueError(f"a share of {memory_mib} MiB is none")
    memory = str(memory_mib)
    if executor is Executor.KAI:
        return {
            "metadata": {"annotations": {KAI_MEMORY: memory, KAI_FRACTION: None}},
            "resources": {"limits": {WHOLE_GPU_RESOURCE: None}},
            "spec": {"schedulerName": SCHEDULERS[executor]},
        }
    if executor is Executor.HAMI:
        return {"resources": {"limits": {WHOLE_GPU_RESOURCE: "1", HAMI_MEMORY: memory}}}
    if executor is Executor.VOLCANO:
        limits = {WHOLE_GPU_RESOURCE: None, VOLCANO_NUMBER: "1", VOLCANO_MEMORY: memory}
        return {"resources": {"limits": limits}, "spec": {"schedulerName": SCHEDULERS[executor]}}
    raise ValueError(f"executor {executor.value}: there is none that hands out shares")


def stated_executor(annotations: Mapping[str, Any], spec: Mapping[str, Any]) -> Executor:
    """The executor in whose terms a pod asks for a share of one GPU; UNKNOWN where it does not."""
    of_kai = spec.get("schedulerName") == SCHEDULERS[Executor.KAI]
    if of_kai and any(name in annotations for name in (KAI_MEMORY, KAI_FRACTION)):
        return Executor.KAI
    containers = spec.get("containers")
    for container in containers if isinstance(containers, Sequence) else ():
        for memory in _COUNTS:
            if container_memory_mib(container, memory):
                return _EXECUTORS[memory]
    return Executor.UNKNOWN


def container_memory_mib(container: Any, *resources: str) -> int:
    """MiB of GPU memory that a container asks for by limit, as HAMi and Volcano read it; 0 for none and for shares of
    several GPUs."""
    block = container.get("resources") if isinstance(container, Mapping) else None
    limits = block.get("limits") if isinstance(block, Mapping) else None
    if not isinstance(limits, Mapping):
        return 0
    for memory in resources or tuple(_COUNTS):
        if limits.get(memory) is not None and _whole(limits.get(_COUNTS[memory])) == 1:
            return _whole(limits[memory])
    return 0


def _whole(amount: Any) -> int:
    """A plain number, as all three insist on; 0 for anything else."""
    text = "" if isinstance(amount, bool) else str(amount)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
