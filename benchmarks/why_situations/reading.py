"""Answers from the objects of a constructed situation, as the API server would."""

from collections.abc import Sequence

from benchmarks.why_situations.objects import NOW_S, Cluster, Constructed
from kopt.cluster.client.resources import (
    JOBS,
    KAI_POD_GROUPS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    PODS,
    VOLCANO_POD_GROUPS,
    Object,
    Resource,
)
from kopt.cluster.objects.fields import text
from kopt.controllers.overview.collect import collected
from kopt.controllers.overview.diagnosis.answer import diagnose
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.documents import ClusterDocuments
from kopt.controllers.overview.diagnosis.starts import RunTimes
from kopt.controllers.overview.job import JobSnapshot, Thing
from kopt.controllers.overview.reading import Lines, Reading
from kopt.controllers.overview.why import why
from kopt.core.scheduling.diagnosis import Diagnosis
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.overview import StagedState


class DocumentReading(Reading):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._kinds = {
            JOBS: cluster.jobs,
            PODS: cluster.pods,
            KUEUE_WORKLOADS: cluster.workloads,
            KUEUE_LOCAL_QUEUES: cluster.local_queues,
            KUEUE_CLUSTER_QUEUES: cluster.cluster_queues,
            KAI_POD_GROUPS: cluster.kai_groups,
            VOLCANO_POD_GROUPS: cluster.volcano_groups,
        }

    async def kinds(self) -> list[Resource]:
        return [JOBS, PODS]

    async def listed(
        self, resource: Resource, namespace: str = "", *, selector: str = "", fields: str = "", narrow: str = ""
    ) -> list[Object]:
        documents = self._kinds.get(resource, [])
        result = [item for item in documents if namespace in ("", text(item, "metadata", "namespace"))]
        if resource == PODS and selector:
            uid = selector.partition("=")[2]
            return [
                pod for pod in result if any(ref["uid"] == uid for ref in pod["metadata"].get("ownerReferences", []))
            ]
        return result

    async def read(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        for item in self._kinds.get(resource, []):
            if (text(item, "metadata", "namespace"), text(item, "metadata", "name")) == (namespace, name):
                return item
        return None

    async def lines(self, narrow: str = "") -> Lines:
        workloads, queues = self._kinds[KUEUE_WORKLOADS], self._kinds[KUEUE_LOCAL_QUEUES]
        return Lines(workloads, queues, (), bool(workloads or queues))

    async def evictions(self, narrow: str = "") -> tuple[Entry, ...]:
        return ()

    async def staged(self, names: Sequence[str], namespace: str) -> tuple[StagedState, ...]:
        return ()


async def snapshot_of(constructed: Constructed) -> JobSnapshot:
    """What ``kopt why`` reads of the job that waits."""
    cluster = constructed.cluster
    target = next(
        Thing(kind, item)
        for kind, several in ((JOBS, cluster.jobs), (PODS, cluster.pods))
        for item in several
        if item["metadata"]["name"] == constructed.name
    )
    return await collected(DocumentReading(cluster), target, NOW_S)


def documents_of(cluster: Cluster, *, nodes: bool = True) -> ClusterDocuments:
    """``nodes``: whether the reader may list nodes and the pods of others."""
    own = cluster.pods if nodes else []
    return ClusterDocuments(
        nodes=cluster.nodes if nodes else [],
        pods=own,
        workloads=cluster.workloads,
        local_queues=cluster.local_queues,
        cluster_queues=cluster.cluster_queues,
        cohorts=cluster.cohorts,
        flavors=cluster.flavors,
        kai_queues=cluster.kai_queues,
        kai_groups=cluster.kai_groups,
        volcano_queues=cluster.volcano_queues,
        volcano_groups=cluster.volcano_groups,
        claims=cluster.claims,
        slices=cluster.slices,
        events=cluster.events,
        unread=() if nodes else ("nodes", "pods"),
    )


async def diagnosis_of(
    constructed: Constructed, *, nodes: bool = True, run_times: RunTimes | None = None
) -> Diagnosis | None:
    job = await snapshot_of(constructed)
    return diagnose(job, ClusterBooks(documents_of(constructed.cluster, nodes=nodes)), why(job).findings, run_times)
