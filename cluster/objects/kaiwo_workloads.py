"""Kaiwo's own objects, as far as they matter here: what it makes of a KaiwoJob, KaiwoService or AIMService, and its
GpuWorkloads.

Sources: Kaiwo's API types and controllers (github.com/silogen/kaiwo: ``kaiwo.silogen.ai/v1alpha1``), and those of AIM
Engine (github.com/amd-enterprise-ai/aim-engine: ``aim.eai.amd.com/v1alpha1``; ``aim.silogen.ai`` before), which makes
one InferenceService of an AIMService, with the labels of its own domain alone. A GpuWorkload stands for one workload
that Kaiwo measures, and outlives it; Kaiwo deletes workloads whose GPUs idle, if it is told to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Key, Object, Resource, key_of
from kopt.cluster.objects.fields import items, mapping, text
from kopt.core.scheduling.eviction import WorkloadRef
from kopt.core.times import seconds
from kopt.core.units import WHOLE_GPU

GPU_WORKLOADS = Resource("kaiwo.silogen.ai", "v1alpha1", "gpuworkloads", "GpuWorkload")
AIM_SERVICES = Resource("aim.eai.amd.com", "v1alpha1", "aimservices", "AIMService")
EARLIER_AIM_SERVICES = Resource("aim.silogen.ai", "v1alpha1", "aimservices", "AIMService")
MAKERS = (AIM_SERVICES, EARLIER_AIM_SERVICES)
"""What workloads are made of, and what holds no templates itself: its InferenceService is the workload."""
KAIWO = "kaiwo"
"""Who evicted, in the ledger."""
_NAME_LABEL, _TYPE_LABEL = "kaiwo.silogen.ai/name", "kaiwo.silogen.ai/type"
_AIM_LABELS = ("aim.eai.amd.com/service", "aim.eai.amd.com/service.name", "aim.silogen.ai/service-name")
"""By version, of the InferenceService of an AIMService, and through KServe of all that is below."""
_PLURALS = {"job": "kaiwojobs", "service": "kaiwoservices"}
_PREEMPTED, _IDLE, _ALWAYS = "Preempted", "Idle", "Always"


@dataclass(frozen=True)
class GpuWorkload:
    """A workload that Kaiwo measures. ``gpus`` are milli-GPU; times are Unix seconds, None where it says none.

    ``for_whom`` is the GpuWorkload that its GPUs were freed for. ``policy`` is ``Always``, ``OnPressure``, or empty for
    the cluster's.
    """

    key: Key
    workload: WorkloadRef
    phase: str
    gpus: int
    policy: str = ""
    idle_since_s: float | None = None
    preempted_at_s: float | None = None
    for_whom: str = ""
    reason: str = ""

    @property
    def was_preempted(self) -> bool:
        """Kaiwo has deleted the workload."""
        return self.phase == _PREEMPTED and self.preempted_at_s is not None

    @property
    def ending(self) -> str:
        """When Kaiwo ends it, in words for the table of what idles."""
        if self.phase != _IDLE:
            return "Kaiwo, once it idles" if self.policy == _ALWAYS else "Kaiwo"
        return "Kaiwo, soon" if self.policy == _ALWAYS else "Kaiwo, once others wait"


def read_gpu_workload(document: Object) -> GpuWorkload | None:
    """None for one that names no workload."""
    reference, status = mapping(document, "spec", "workloadRef"), mapping(document, "status")
    fields = [text(reference, name) for name in ("apiVersion", "kind", "name", "uid")]
    if not all(fields):
        return None
    counts = [count for _, count in items(document, "spec", "gpuResources") if isinstance(count, int) and count > 0]
    return GpuWorkload(
        key_of(document),
        WorkloadRef(*fields),
        text(status, "phase"),
        sum(counts) * WHOLE_GPU,
        text(document, "spec", "preemptionPolicy"),
        _seconds(status, "idleSince"),
        _seconds(status, "preemptedAt"),
        text(status, "preemptedFor"),
        text(status, "preemptionReason"),
    )


def kaiwo_owner(labels: Mapping[str, Any]) -> tuple[str, str] | None:
    """(plural, name) of the KaiwoJob, KaiwoService or AIMService that an object was made for, by the labels on all that
    is made for them; None without these."""
    for label in _AIM_LABELS:
        if served := text(labels, label):
            return AIM_SERVICES.plural, served
    plural, name = _PLURALS.get(text(labels, _TYPE_LABEL)), text(labels, _NAME_LABEL)
    return (plural, name) if plural and name else None


def _seconds(status: Mapping[str, Any], name: str) -> float | None:
    written = text(status, name)
    try:
        return seconds(written) if written else None
    except ValueError:
        return None
