"""What is left of lending where no pool lends any more: workloads still held, quotas still raised."""

from collections.abc import Collection, Iterator

from kopt.cluster.client.resources import (
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_WORKLOADS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.holds.quota_loan import QuotaPath, quota_from_undo
from kopt.cluster.objects.fields import at
from kopt.controllers.lending.patches import restoring_patch
from kopt.controllers.lending.state import LiveCluster, kai_queue, volcano_queue
from kopt.controllers.lending.views import HOLDER
from kopt.core.scheduling.eviction import System

_SYSTEMS = ((KUEUE_CLUSTER_QUEUES, System.KUEUE), (KAI_QUEUES, System.KAI), (VOLCANO_QUEUES, System.VOLCANO))


def stray_workloads(
    cluster: LiveCluster, borrowers: Collection[tuple[System, str]]
) -> Iterator[tuple[Resource, str, Object]]:
    """Held workloads of queues that are no ``borrowers``, and held ones that others have resumed."""
    for workload in cluster.workloads():
        queue = (System.KUEUE, cluster.cluster_queue_of(workload))
        if workload.holder == HOLDER and (queue not in borrowers or workload.active):
            yield KUEUE_WORKLOADS, workload.name, workload.document
    for job in cluster.jobs():
        runs = at(job, "spec", "suspend") is not True
        if holder_of(job) == HOLDER and (runs or (System.KAI, kai_queue(job)) not in borrowers):
            yield JOBS, "/".join(key_of(job)), job
    for job in cluster.volcano_jobs():
        if holder_of(job) == HOLDER and (System.VOLCANO, volcano_queue(job)) not in borrowers:
            yield VOLCANO_JOBS, "/".join(key_of(job)), job


def stray_quotas(
    cluster: LiveCluster, lent: Collection[tuple[System, str, QuotaPath]]
) -> Iterator[tuple[Resource, str, Object, Object]]:
    """Queues with raised quotas other than those of ``lent``, and the patches that lower these again."""
    for resource, system in _SYSTEMS:
        for name, document in cluster.queues(resource).items():
            owned = quota_from_undo(undo_of(document))
            over = [index for index in owned if (system, name, index) not in lent]
            if holder_of(document) == HOLDER and (over or not owned):
                yield resource, name, document, restoring_patch(resource, document, over)
