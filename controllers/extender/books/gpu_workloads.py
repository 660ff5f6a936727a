"""GPUWorkload: what it asks for its pods, and the status that says where they were placed."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import GPU_WORKLOADS, Key, Object
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.workloads.requests.pods import Wish
from kopt.core.hardware.bandwidth import BandwidthKind, BandwidthMinimum
from kopt.core.scheduling.placement import TopologyPreference
from kopt.core.units import Bytes
from kopt.core.untrusted import decimal

_LOG = logging.getLogger(__name__)
_GB = 10**9
_MOST = 1e6
"""GB of a GPU, GPUs of a pod, GB/s of a link: none is more."""
_MOST_LISTED = 100
_REPLICAS = ("inference", "serving")
"""Types of workloads whose pods are copies of each other, and better apart."""
_GATHER_S = 0.2
"""Pods of one workload come together; their status is written once for all of them."""


@dataclass(frozen=True, slots=True)
class GpuWorkload:
    """What is kept of a GPUWorkload: its wish, how many GPUs it names, and the version its status is written to."""

    wish: Wish
    gpus: int
    version: str
    generation: int
    status: Object


def workload_of(document: Object) -> GpuWorkload:
    """Raises ValueError, TypeError or AttributeError for a document that its schema would not let through."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    wanted = spec.get("gpuRequirements") or {}
    topology = wanted.get("topology") or {}
    wish = Wish(
        Bytes(round(_number(wanted.get("minMemoryGB")) * _GB)),
        TopologyPreference(topology.get("preference") or TopologyPreference.ANY),
        topology.get("required") is True,
        _minimum(topology),
        int(_number(wanted.get("count"))),
        not any(word in str(spec.get("workloadType") or "").lower() for word in _REPLICAS),
    )
    return GpuWorkload(
        wish, wish.gpus, metadata["resourceVersion"], metadata.get("generation", 0), document.get("status") or {}
    )


def _minimum(topology: Mapping[str, Any]) -> BandwidthMinimum | None:
    gbps = _number(topology.get("minBandwidthGBps"))
    kind = BandwidthKind(str(topology.get("minBandwidthOf") or "Link").lower())
    return BandwidthMinimum(kind, gbps) if gbps else None


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """One pod of a workload, with its node ("" while it has none)."""

    name: str
    node: str
    gpus: tuple[int, ...]
    score: float | None


class Statuses:
    """Writes the status of workloads whose pods changed, while this replica leads."""

    def __init__(
        self,
        kube: Kube,
        workloads: Mapping[Key, GpuWorkload],
        pods: Callable[[Key], list[PlacedPod]],
        leading: Callable[[], bool],
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation or Isolation("extender")
        self._kube, self._workloads, self._pods, self._leading = kube, workloads, pods, leading
        self._dirty: set[Key] = set()
        self._woken = asyncio.Event()

    def changed(self, workload: Key) -> None:
        """Something about a workload's pods is different."""
        self._dirty.add(workload)
        self._woken.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(_GATHER_S)
            for key in tuple(self._dirty):
                self._dirty.discard(key)
                if self._leading():
                    with self._isolation.guard(Subject(GPU_WORKLOADS.api_version, GPU_WORKLOADS.kind, *key)):
                        await self._write(key)

    async def _write(self, key: Key) -> None:
        workload = self._workloads.get(key)
        if workload is None:
            return
        status = status_of(workload, self._pods(key))
        if all(workload.status.get(name) == value for name, value in status.items()):
            return
        # The version keeps a deposed leader, and a status that is no longer true, from being written late.
        body = {"metadata": {"resourceVersion": workload.version}, "status": status}
        try:
            await self._kube.patch(GPU_WORKLOADS, key[1], body, key[0], subresource="status")
        except ApiError as error:
            # The informer delivers the change, which marks it again.
            _LOG.info("the status of GPUWorkload %s/%s is not written: %s", *key, error)


def status_of(workload: GpuWorkload, pods: list[PlacedPod]) -> dict[str, Any]:
    """The status; at most a hundred pods are listed."""
    placed = sorted((pod for pod in pods if pod.node), key=lambda pod: pod.name)
    gpus = sum(len(pod.gpus) for pod in placed)
    whole = bool(placed) and len(placed) == len(pods) and gpus >= workload.gpus
    return {
        "observedGeneration": workload.generation,
        "phase": "Placed" if whole else "PartiallyPlaced" if placed else "Pending",
        "pods": len(pods),
        "placedPods": len(placed),
        "placedGpus": gpus,
        "placements": [
            {"pod": pod.name, "node": pod.node, "gpuIndices": list(pod.gpus)}
            | ({"score": f"{pod.score:.3f}"} if pod.score is not None else {})
            for pod in placed[:_MOST_LISTED]
        ],
    }


def _number(value: object) -> float:
    """An int-or-string field; 0 where it is absent. Raises ValueError for a text that is no number."""
    if value is None or isinstance(value, bool):
        return 0.0
    if isinstance(value, str):
        return max(0.0, decimal(value.strip(), -_MOST, _MOST))
    if isinstance(value, int | float) and value <= _MOST:
        return max(0.0, float(value))
    raise ValueError(f"{value!r} is no number from 0 to {_MOST:g}")
