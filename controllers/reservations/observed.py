"""What informers have seen of the objects that reservations are decided by. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kopt.cluster.client.resources import Key
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor
from kopt.controllers.reservations.pod_engines import NODE_POOL_LABEL
from kopt.controllers.reservations.views import HoldJob, ObservedNode, ObservedPod, ObservedWorkload, Reserved
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import Engine
from kopt.core.scheduling.reservation import Reservation
from kopt.core.workload.run_time import RunTimeQuantiles


@dataclass(frozen=True)
class Observed:
    """Everything that informers have seen, and the run times that the endpoint knows, by the uid of a Workload: of one
    that runs what is left. ``mode``: in which a Workload may be acted on."""

    now_s: float
    reservations: Sequence[Reserved]
    workloads: Sequence[ObservedWorkload]
    pods: Sequence[ObservedPod]
    nodes: Sequence[ObservedNode]
    jobs: Sequence[HoldJob]
    local_queues: Mapping[Key, str]
    queues: Mapping[str, ClusterQueue]
    flavors: Mapping[str, Flavor]
    spaces: Mapping[str, NamespaceSettings]
    run_times: Mapping[str, RunTimeQuantiles]
    mode: Callable[[ObservedWorkload], Mode]
    reservation_mode: Callable[[Reserved], Mode]
    engine: Engine = Engine.KUEUE
    """Under KAI and Volcano there are no Workloads: queues are those that pods name, of any namespace."""

    @property
    def has_workloads(self) -> bool:
        return self.engine is Engine.KUEUE

    def queue_name(self, spec: Reservation) -> str:
        """The engine's queue for a reservation; empty where it is not known."""
        return self.local_queues.get((spec.namespace, spec.queue), "") if self.has_workloads else spec.queue

    def ahead_s(self, spec: Reservation, ahead_s: float) -> float:
        """How long before a start idle GPUs are held: where nothing can be kept from starting, not before the lead."""
        return ahead_s if self.has_workloads else spec.lead_s

    @cached_property
    def pods_by_workload(self) -> Mapping[str, list[ObservedPod]]:
        """By the uid of a Workload, or of its owner."""
        result: dict[str, list[ObservedPod]] = defaultdict(list)
        by_key = {each.key: each.workload.uid for each in self.workloads}
        for pod in self.pods:
            for uid in {pod.gpu_pod.owner_uid, by_key.get((pod.key[0], pod.gpu_pod.workload), "")} - {""}:
                result[uid].append(pod)
        return result

    def pods_of(self, workload: ObservedWorkload) -> list[ObservedPod]:
        own = self.pods_by_workload.get(workload.workload.uid)
        return own or self.pods_by_workload.get(workload.workload.owner_uid, [])


def nodes_of(observed: Observed, pool: str) -> list[ObservedNode]:
    """The nodes of a flavor that can be used."""
    flavor = observed.flavors.get(pool)
    if flavor is None:
        return []
    nodes = [node for node in observed.nodes if flavor.labels.items() <= node.labels.items()]
    if observed.engine is Engine.KAI and not flavor.labels:
        # The shard without a pool leaves the nodes of pools alone.
        return [node for node in nodes if NODE_POOL_LABEL not in node.labels]
    return nodes


def holding(observed: Observed) -> set[str]:
    """The uids of Workloads that hold GPUs for reservations, also when their Job is gone already."""
    uids = {job.uid for job in observed.jobs}
    prefixes: dict[str, list[str]] = defaultdict(list)
    for reserved in observed.reservations:
        prefixes[reserved.key[0]].append(reserved.job_prefix)
    return {
        each.workload.uid
        for each in observed.workloads
        if each.workload.owner_uid in uids or each.owner_name.startswith(tuple(prefixes.get(each.key[0], ())))
    }


def with_runs(observed: Observed, run_times: Mapping[str, RunTimeQuantiles]) -> Observed:
    """The same with these run times."""
    return replace(observed, run_times=run_times)
