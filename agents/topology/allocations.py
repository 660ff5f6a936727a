"""Publishes which devices the kubelet has given to which pods: the ``NodeAllocation`` of the node.

The API has no watch, so the kubelet is asked every second; the object is written when the answer is another one, and
now and then although it is not, so that an object that somebody deleted comes back.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kopt.agents.topology.pod_resources import KubeletError, PodResources, pod_resources
from kopt.agents.topology.publishing import FIELD_MANAGER, Publisher
from kopt.agents.topology.scanning import ScanResult
from kopt.cluster.client.api import ApiError, Kube, Patch
from kopt.cluster.client.resources import NODE_ALLOCATIONS
from kopt.cluster.objects.custom.node_allocation import document_of
from kopt.cluster.runtime.backoff import Backoff
from kopt.core.hardware.node_allocation import DeviceAllocation, gpus_of
from kopt.formats.topology.nvidia.list import instance_gpus

_LOG = logging.getLogger(__name__)
_LISTS = "nvidia-smi-list"


@dataclass(frozen=True)
class AllocationSettings:
    """Times in seconds. ``socket``: of the kubelet, usually /var/lib/kubelet/pod-resources/kubelet.sock."""

    socket: Path
    interval_s: float = 1.0
    renew_s: float = 600.0
    retry_longest_s: float = 60.0


class AllocationReporter:
    """Of one node. ``publisher`` knows the node's uid and what was scanned on it."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        publisher: Publisher,
        settings: AllocationSettings,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._node, self._publisher = kube, node, publisher
        self._settings, self._now = settings, now
        self._retry = Backoff(settings.interval_s, settings.retry_longest_s)
        self._written: tuple[DeviceAllocation, ...] | None = None
        self._written_s = float("-inf")
        self._problem = ""
        self.kubelet_reads: dict[str, int] = {}
        """Of the kubelet, by outcome."""
        self.writes: dict[str, int] = {}
        """By outcome."""

    async def run(self) -> None:
        """Never ends by itself; survives a kubelet and an API server that are away."""
        async with pod_resources(self._settings.socket) as kubelet:
            while True:
                await asyncio.sleep(await self.step(kubelet))

    async def step(self, kubelet: PodResources) -> float:
        """Ask once, and write where something changed; returns in how many seconds to ask again."""
        try:
            reported = await kubelet.allocations()
        except KubeletError as error:
            return self._failed(self.kubelet_reads, "failed", f"the kubelet does not say what pods have: {error}")
        read_s = self._now()
        self._count(self.kubelet_reads, "ok")
        try:
            await self._publish(reported, read_s)
        except ApiError as error:
            return self._failed(self.writes, error.reason, f"the NodeAllocation is not written yet: {error}")
        self._retry.reset()
        self._say("")
        return self._settings.interval_s

    async def _publish(self, reported: tuple[DeviceAllocation, ...], read_s: float) -> None:
        node = self._publisher.node
        if node is None or self._publisher.result is None:
            return
        gpus_by_name = names_of_gpus(self._publisher.result)
        allocations = tuple([_with_gpus(allocation, gpus_by_name) for allocation in reported])
        if allocations == self._written and read_s - self._written_s < self._settings.renew_s:
            return
        document = document_of(self._node, node.uid, allocations, read_s)
        await self._kube.patch(
            NODE_ALLOCATIONS, self._node, document, kind=Patch.APPLY, field_manager=FIELD_MANAGER, force=True
        )
        self._count(self.writes, "ok")
        self._written, self._written_s = allocations, read_s

    def _failed(self, counts: dict[str, int], outcome: str, message: str) -> float:
        self._count(counts, outcome)
        self._say(message)
        return self._retry.next_s()

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            _LOG.warning("%s", problem)
        self._problem = problem

    @staticmethod
    def _count(counts: dict[str, int], outcome: str) -> None:
        counts[outcome] = counts.get(outcome, 0) + 1


def names_of_gpus(result: ScanResult | None) -> dict[str, int]:
    """What device plugins may call the node's GPUs: UUID, PCI address, index, and UUIDs of MIG instances on them."""
    topology = result.topology if result is not None else None
    if result is None or topology is None:
        return {}
    gpus = sorted(topology.gpus, key=lambda gpu: gpu.index)
    positions = {gpu.index: position for position, gpu in enumerate(gpus)}
    names = {
        name: position for position, gpu in enumerate(gpus) for name in (gpu.uuid, gpu.pci, str(gpu.index)) if name
    }
    listed = next((reading.text for reading in result.readings if reading.name == _LISTS), "")
    return names | {uuid: positions[index] for uuid, index in instance_gpus(listed).items() if index in positions}


def _with_gpus(allocation: DeviceAllocation, gpus_by_name: dict[str, int]) -> DeviceAllocation:
    # Names of drivers' devices are their own: which GPU one is stands in its ResourceSlice.
    return allocation if allocation.claim else replace(allocation, gpus=gpus_of(allocation.devices, gpus_by_name))
