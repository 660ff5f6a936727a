"""What hands out shares of a GPU in a cluster, by what the cluster itself shows.

* KAI: its ``Config`` says that GPU sharing is on (chart value ``global.gpuSharing``, off by default). Where it is off,
  its webhook refuses shares: ``pkg/admission/webhook/v1alpha2/gpusharing/gpu_sharing.go`` (NVIDIA/KAI-Scheduler v0.12).
* HAMi: its device plugin writes ``hami.io/node-nvidia-register`` on its nodes (``pkg/device/nvidia/device.go``).
* Volcano: its vGPU plugin makes ``volcano.sh/vgpu-memory`` allocatable on its nodes.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from kopt.cluster.client.api import Forbidden, Kube, NotFound
from kopt.cluster.client.resources import CONFORMANCE_POLICIES, NODES, Object, Resource
from kopt.cluster.objects.fields import at, mapping, text
from kopt.cluster.workloads.frameworks import written_queue
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.launching.launching import launched
from kopt.cluster.workloads.workload import Workload
from kopt.core.scheduling.submission import Framework
from kopt.core.workload.executor import Executor
from kopt.core.workload.gpu_share import COUNT
from kopt.formats.gpu_shares import KAI_DEVICES, SCHEDULERS, VOLCANO_MEMORY, stated_executor

POLICY_NAME = "default"
"""Of the ConformancePolicy."""
KAI_CONFIGS = Resource("kai.scheduler", "v1", "configs", "Config", namespaced=False)
_REGISTERED, _HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
_DELETED = "Deleted"
"""How the handshake of a node begins whose device plugin does not answer any more."""
_UNITS = 1.5
"""Volcano's plugin may count memory in larger units (``gpu-memory-factor``): above this ratio it does."""


def node_executor(node: Object) -> Executor | None:
    """What a node's device plugin hands out shares by; None where it does not.

    Also None for a plugin of Volcano's that counts memory in other units than MiB.
    """
    annotations = mapping(node, "metadata", "annotations")
    if text(annotations, _REGISTERED) and not text(annotations, _HANDSHAKE).startswith(_DELETED):
        return Executor.HAMI
    memory_mib = _number(at(node, "status", "allocatable", VOLCANO_MEMORY))
    labels = mapping(node, "metadata", "labels")
    physical_mib = _number(labels.get("nvidia.com/gpu.memory")) * _number(labels.get("nvidia.com/gpu.count"))
    return Executor.VOLCANO if memory_mib and physical_mib <= _UNITS * memory_mib else None


def kai_executor(config: Object) -> Executor | None:
    """KAI where its configuration has GPU sharing on, else None."""
    return Executor.KAI if at(config, "spec", "admission", "gpuSharing") is True else None


def executor_by_signs(signs: Iterable[Executor]) -> Executor:
    """The executor of a cluster with these signs: NONE without any, UNKNOWN where they contradict each other."""
    distinct = set(signs)
    if len(distinct) > 1:
        return Executor.UNKNOWN
    return next(iter(distinct), Executor.NONE)


def stated_by(policy: Object) -> Executor:
    """What a ConformancePolicy says hands out shares; UNKNOWN where it does not. Raises ValueError."""
    return Executor(text(policy, "spec", "sizing", "executor").lower() or Executor.UNKNOWN)


async def executor_in(kube: Kube) -> Executor:
    """As the cluster's ConformancePolicy says, else as the cluster shows."""
    with contextlib.suppress(NotFound, Forbidden, ValueError):
        stated = stated_by(await kube.get(CONFORMANCE_POLICIES, POLICY_NAME))
        if stated is not Executor.UNKNOWN:
            return stated
    return await discover(kube)


async def discover(kube: Kube) -> Executor:
    """The executor that a cluster shows; UNKNOWN where its nodes or KAI's configuration may not be read."""
    try:
        signs = await asyncio.gather(_kai(kube), _nodes(kube))
    except Forbidden:
        return Executor.UNKNOWN
    return executor_by_signs(signs[0] | signs[1])


async def _kai(kube: Kube) -> set[Executor]:
    try:
        return {sign for config in (await kube.list(KAI_CONFIGS)).items if (sign := kai_executor(config))}
    except NotFound:
        return set()


async def _nodes(kube: Kube) -> set[Executor]:
    return {sign async for page in kube.pages(NODES) for node in page.items if (sign := node_executor(node))}


def executor_for(executor: Executor, document: Object, workload: Workload, pods: PodSet) -> Executor:
    """What hands shares to a set of pods, as ``document`` has the workload now, in a cluster with ``executor``.

    NONE for pods of another scheduler or without a template of their own, for pods without the queue that KAI asks for,
    and for what waits in a queue of Kueue, whose quota counts no shares. Pods that ask in an executor's terms already
    have that one.
    """
    if pods.made_from is not None or launched(workload, pods).repeated:
        # A TrainJob has no template to annotate, and Ray counts the GPUs that its own fields name.
        return Executor.NONE
    if pods.spec is None or pods.metadata is None:
        return Executor.NONE if executor.hands_out else executor
    spec = mapping(document, *pods.spec)
    annotations = {**mapping(document, "metadata", "annotations"), **mapping(document, *pods.metadata, "annotations")}
    if KAI_DEVICES in annotations or annotations.get(COUNT, "1") != "1":
        return Executor.UNKNOWN
    stated = stated_executor(annotations, spec)
    if stated.hands_out or not executor.hands_out:
        return stated if stated.hands_out else executor
    if text(spec, "schedulerName") not in ("", "default-scheduler", SCHEDULERS[executor]):
        return Executor.NONE
    queued = {
        framework: bool(written_queue(framework, workload.kind, document, workload.pod_sets)) for framework in Framework
    }
    if queued[Framework.KUEUE] or (executor is Executor.KAI and not queued[Framework.KAI]):
        return Executor.NONE
    return executor


def _number(amount: Any) -> int:
    text_ = "" if isinstance(amount, bool) else str(amount)
    return int(text_) if text_.isascii() and text_.isdigit() and len(text_) < 12 else 0
