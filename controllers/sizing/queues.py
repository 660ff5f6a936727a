"""Reads and changes Kueue's objects of admitted Jobs.

An admitted Job is stopped through its Workload, which Kueue then evicts: if the Job itself were suspended, Kueue would
start it again. The Workload of a Job that asks for something else afterwards is made anew by Kueue, as an active one;
``resume`` takes our mark off it, and lets one run that is as it was.
"""

import logging

from kopt.cluster.client.api import Forbidden, Kube, NotFound
from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, KUEUE_LOCAL_QUEUES, KUEUE_WORKLOADS, Object, Resource
from kopt.cluster.holds.hold import HoldError, hold, holder_of, release
from kopt.cluster.objects.fields import at, items, text
from kopt.cluster.runtime.lease import Fence
from kopt.controllers.sizing.jobs import HOLDER

_LOG = logging.getLogger(__name__)
_JOB_LABEL = "kueue.x-k8s.io/job-uid"


class Queues:
    """Kueue's objects, read when they are needed: that is once for a Job, or for one that ran out of memory."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._served: dict[Resource, Resource] = {}

    async def usable_resources(self, namespace: str, queue: str) -> frozenset[str]:
        """The resources that a LocalQueue has quota of; none where that cannot be found out."""
        try:
            local = await self._get(KUEUE_LOCAL_QUEUES, queue, namespace)
            result = await self._get(KUEUE_CLUSTER_QUEUES, text(local, "spec", "clusterQueue"))
        except (NotFound, Forbidden) as error:
            _LOG.warning("the quota of queue %s/%s cannot be read: %s", namespace, queue, error)
            return frozenset()
        return frozenset(
            text(resource, "name")
            for _, group in items(result, "spec", "resourceGroups")
            for _, flavor in items(group, "flavors")
            for _, resource in items(flavor, "resources")
            if str(resource.get("nominalQuota", "0")) != "0"
        )

    async def stop(self, fence: Fence, job: Object) -> bool:
        """Have Kueue evict an admitted Job; False where it has no Workload of it."""
        result = await self._workloads(job)
        for served, workload in result:
            if at(workload, "spec", "active") is False:
                continue
            try:
                await fence.patch(served, workload, hold(KUEUE_WORKLOADS, workload, HOLDER))
            except HoldError as error:
                _LOG.info("%s", error)
        return bool(result)

    async def stopping(self, job: Object) -> bool:
        """Whether we have deactivated a Job's Workload, so that Kueue stops it."""
        return any(holder_of(workload) == HOLDER for _, workload in await self._workloads(job))

    async def resume(self, fence: Fence, job: Object) -> None:
        """Let Kueue decide about a Job again; does nothing where it does already."""
        for served, workload in await self._workloads(job):
            if holder_of(workload) == HOLDER:
                await fence.patch(served, workload, release(KUEUE_WORKLOADS, workload))

    async def _workloads(self, job: Object) -> list[tuple[Resource, Object]]:
        served = await self._version(KUEUE_WORKLOADS)
        selector = f"{_JOB_LABEL}={job['metadata']['uid']}"
        try:
            result = await self._kube.list(served, job["metadata"]["namespace"], label_selector=selector)
        except NotFound:
            return []
        return [(served, item) for item in result.items]

    async def _get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        return await self._kube.get(await self._version(resource), name, namespace)

    async def _version(self, resource: Resource) -> Resource:
        """The kind as it is served: an API group may have left the version behind that this was written against."""
        if resource not in self._served:
            served = await self._kube.serves(resource)
            self._served[resource] = resource if served else await self._kube.preferred(resource) or resource
        return self._served[resource]
