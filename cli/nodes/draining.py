"""A node that is emptied before the plan for it is written, and takes pods again when the plan has ended."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object

_POLL_S = 1.0
_SCHEDULED_S = 3.0
"""A pod that was given the node before it was cordoned may be bound so much later."""
Say = Callable[[str], None]


class DrainedNode:
    """``empty`` first; ``open`` undoes the cordon where it was ours."""

    def __init__(self, kube: "Kube", name: str, say: Say) -> None:
        self._kube, self._name, self._say = kube, name, say
        self._is_cordoned = False

    async def empty(self, until_s: float) -> None:
        """Cordons the node and evicts its pods with GPUs, until a monotonic time. What forbids one eviction is known
        before anything is written. Raises Refused, with the node as it was, and ApiError."""
        from kopt.cluster.checkpoints.draining import evict_pods, unevictable

        pods = await self._pods()
        if kept := [*unevictable(pods), *await evict_pods(self._kube, pods, dry_run=True)]:
            raise Refused(f"these pods are not evicted from {self._name}: {', '.join(kept[:5])}")
        await self._cordon()
        try:
            await asyncio.sleep(_SCHEDULED_S)
            while pods := await self._pods():
                if kept := unevictable(pods):
                    raise Refused(f"a pod came that is not evicted from {self._name}: {', '.join(kept[:5])}")
                if time.monotonic() > until_s:
                    names = ", ".join(pod["metadata"]["name"] for pod in pods[:5])
                    raise Refused(f"these pods of {self._name} have not ended: {names}")
                await evict_pods(self._kube, pods)
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await asyncio.shield(asyncio.create_task(self.open()))
            raise

    async def open(self) -> None:
        """Raises ApiError."""
        from kopt.cluster.client.resources import NODES

        if self._is_cordoned:
            await self._kube.patch(NODES, self._name, {"spec": {"unschedulable": None}})
            self._is_cordoned = False
            self._say(f"{self._name} takes pods again")

    async def _cordon(self) -> None:
        """One that somebody else has cordoned stays so."""
        from kopt.cluster.client.resources import NODES
        from kopt.cluster.objects.fields import at

        node = await self._kube.get(NODES, self._name)
        if at(node, "spec", "unschedulable") is not True:
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            await self._kube.patch(NODES, self._name, {"metadata": version, "spec": {"unschedulable": True}})
            self._is_cordoned = True
            self._say(f"{self._name} takes no pods for now, and those with GPUs are evicted")

    async def _pods(self) -> "list[Object]":
        from kopt.cluster.client.resources import PODS, UNFINISHED_PODS
        from kopt.cluster.objects.fields import mapping
        from kopt.cluster.workloads.requests.gpus import gpus_of

        listed = await self._kube.list(PODS, field_selector=f"spec.nodeName={self._name},{UNFINISHED_PODS}")
        return [
            pod
            for pod in listed.items
            if mapping(pod, "spec").get("resourceClaims")
            or gpus_of(mapping(pod, "spec"), mapping(pod, "metadata", "annotations"))
        ]
