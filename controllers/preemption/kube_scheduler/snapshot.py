"""The snapshot a decision is made from: pending and running gangs, and what is free on each node. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.cluster.checkpoints.save_requests import Saving
from kopt.cluster.checkpoints.status import bounded, latest_status, member
from kopt.cluster.client.resources import Key
from kopt.cluster.workloads.requests.gpus import gpus_in
from kopt.controllers.preemption.kube_scheduler.views import PlainNode, PlainPod
from kopt.controllers.preemption.snapshot import shortlist
from kopt.core.reason import Reason
from kopt.core.scheduling.classify import preemption_bar
from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import Estimate, Member
from kopt.core.workload.save_state import USUAL_S, SaveState
from kopt.policies.preemption import Preemptor, RunningGang, Snapshot

_NOTHING = Estimate(0.0, 0.0, 0.0)
HANGS_S = 60.0
"""A pod that still exists this long after it should have ended may stay forever."""
LONGEST_TERMINATION_S = 900.0
"""No preemptor waits longer for the room of an evicted pod, however long its termination grace period is."""


@dataclass(frozen=True)
class Gang:
    """Pods that are scheduled and evicted together."""

    pods: tuple[PlainPod, ...]

    @property
    def name(self) -> str:
        """Namespace and name of the owner; of a pod's own where it has none."""
        first = min(self.pods, key=lambda pod: pod.key)
        return f"{first.key[0]}/{first.owner.get('name') or first.key[1]}"

    @property
    def priority(self) -> int:
        return max(pod.priority for pod in self.pods)

    @property
    def queue(self) -> str:
        return self.pods[0].queue

    @property
    def terminating(self) -> bool:
        """Whether all of its pods are terminating, for whatever reason."""
        return all(pod.terminating for pod in self.pods)

    @property
    def owner_uid(self) -> str:
        return self.pods[0].gpu_pod.owner_uid

    @property
    def created_s(self) -> float:
        return min(pod.created_s for pod in self.pods)

    @property
    def complete_s(self) -> float:
        """Creation time of its newest pod, in whole seconds."""
        return max(pod.created_s for pod in self.pods)


@dataclass(frozen=True)
class ClusterSnapshot:
    """All pods and nodes; ``preemptions`` within a day by the owner's uid, ``ours``: namespaces to act in."""

    now_s: float
    pods: Sequence[PlainPod]
    nodes: Mapping[str, PlainNode]
    preemptions: Mapping[str, int] = field(default_factory=dict)
    ours: frozenset[str] = frozenset()
    stale_s: float = 75.0
    sets: Mapping[str, str] = field(default_factory=dict)
    """The JobSet's uid by that of each of its Jobs: anybody may write its label on a pod."""

    def gang_of(self, pod: PlainPod) -> tuple[str, str]:
        """The key of its gang, by the owners of its owner; never across namespaces."""
        return pod.key[0], self.sets.get(pod.gpu_pod.owner_uid) or pod.gang[1]

    def is_ours(self, preemptor: PlainPod) -> bool:
        return preemptor.key[0] in self.ours

    def allows(self, _preemptor: Gang, _victims: Sequence[Gang]) -> bool:
        """Whether all of its pods may fit once ``_victims`` have terminated."""
        return True

    def frees_room_for(self, preemptor: Gang, pod: PlainPod) -> bool:
        """Whether the pod is terminating, is not stuck, and was not evicted for another preemptor."""
        free = pod.evicting is None or pod.evicting.preemptor == preemptor.name
        by_s = min(pod.ends_s + HANGS_S, pod.ends_s - pod.grace_s + LONGEST_TERMINATION_S)
        return pod.terminating and free and self.now_s < by_s

    def may_preempt(self, gang: Gang, preemptor: Gang) -> bool:
        """Whether a gang is eligible as a victim for ``preemptor`` at all."""
        return gang.queue == preemptor.queue and gang.priority < preemptor.priority and not gang.terminating

    def gangs(self) -> list[Gang]:
        """Gangs that run, are starting, or are terminating: the latter come first."""
        plain_pods: dict[tuple[str, str], list[PlainPod]] = defaultdict(list)
        for pod in self.pods:
            if pod.node and pod.batch and pod.key[0] in self.ours:
                plain_pods[self.gang_of(pod)].append(pod)
        gangs = [Gang(tuple(pods)) for pods in plain_pods.values() if any(pod.gpu_pod.gpus for pod in pods)]
        return sorted(gangs, key=lambda gang: not gang.terminating)

    def preemptors(self) -> list[Gang]:
        """Gangs with an unschedulable pod, the highest priority first."""
        plain_pods: dict[tuple[str, str], list[PlainPod]] = defaultdict(list)
        for pod in self.pods:
            if pod.open and not pod.terminating and pod.resource and self.is_ours(pod):
                plain_pods[self.gang_of(pod)].append(pod)
        gangs = [
            Gang(tuple(sorted(pods, key=lambda pod: pod.key)))
            for pods in plain_pods.values()
            if any(pod.refused for pod in pods)
        ]
        return sorted(gangs, key=lambda gang: (-gang.priority, gang.created_s, gang.name))

    def free(self, preemptor: Gang) -> dict[str, Counter[str]]:
        """Free resources of the nodes that accept the pods, including those of terminating pods; promises to others of
        the same or a higher priority are kept."""
        own, first = {pod.gpu_pod.uid for pod in preemptor.pods}, preemptor.pods[0]
        remaining = {name: Counter(node.room) for name, node in self.nodes.items() if node.accepts(first)}
        for pod in self.pods:
            promised = pod.promised if pod.priority >= preemptor.priority and pod.gpu_pod.uid not in own else ""
            if (node := pod.node or promised) in remaining and not self.frees_room_for(preemptor, pod):
                remaining[node].subtract(pod.requests)
                remaining[node]["pods"] -= 1000
        return remaining


def refusal(preemptor: Gang) -> Reason | None:
    """Why no victims are selected for it; None if they can be."""
    if not all(pod.simple for pod in preemptor.pods):
        return Reason("NOT_SIMPLE", f"{preemptor.name} has affinities, spreads or claims; where it fits is unknown.")
    if len({tuple(sorted(pod.requests.items())) for pod in preemptor.pods}) > 1:
        return Reason("NOT_ALIKE", f"The pods of {preemptor.name} request different amounts.")
    return None


def snapshot_for(preemptor: Gang, snapshot: ClusterSnapshot, budget_s: float) -> Snapshot:
    resource, free = preemptor.pods[0].resource, snapshot.free(preemptor)
    per_pod = gpus_in(resource, preemptor.pods[0].requests[resource])
    room = {name: gpus_in(resource, max(0, remaining[resource])) for name, remaining in free.items()}
    candidates = [gang for gang in snapshot.gangs() if snapshot.may_preempt(gang, preemptor)]
    names = Counter(gang.name for gang in candidates)
    # Owners with ambiguous names are never victims.
    gangs = [
        gang_of(gang, snapshot, preemptor.created_s)
        for gang in candidates
        if names[gang.name] == 1 and any(pod.node in free and pod.resource == resource for pod in gang.pods)
    ]
    return Snapshot(
        Preemptor(preemptor.name, "", preemptor.priority, per_pod, preemptor.created_s, budget_s, len(preemptor.pods)),
        shortlist(gangs, per_pod * len(preemptor.pods)),
        snapshot.now_s,
        {},
        room,
    )


def gang_of(gang: Gang, snapshot: ClusterSnapshot, since_s: float = float("-inf")) -> RunningGang:
    saving = Saving.of([pod.gpu_pod for pod in gang.pods], snapshot.now_s, since_s)
    started = [pod.started_s for pod in gang.pods if pod.started_s is not None]
    bars = (preemption_bar(gang.name, pod.classified) for pod in gang.pods if pod.classified is not None)
    return RunningGang(
        gang.name,
        "",
        gang.priority,
        tuple(_members(gang, snapshot)),
        max(started, default=snapshot.now_s),
        preemptions=snapshot.preemptions.get(gang.owner_uid, 0),
        saves_s=USUAL_S if saving.state is SaveState.ASKABLE else None,
        saved_at_s=saving.saved_at_s,
        barred_by_class=next((bar for bar in bars if bar is not None), None),
    )


def _members(gang: Gang, snapshot: ClusterSnapshot) -> Iterable[Member]:
    """One member for each log and node; the work at risk of a log counts for its first member only."""
    logs: dict[str, list[PlainPod]] = defaultdict(list)
    for pod in gang.pods:
        logs[pod.gpu_pod.owner_uid or pod.gpu_pod.uid].append(pod)
    for pods in logs.values():
        pod_views = [pod.gpu_pod for pod in pods]
        reported = latest_status([pod.annotations for pod in pod_views], snapshot.now_s, snapshot.stale_s)
        reported = bounded(reported, sum(pod.gpu_pod.gpus for pod in gang.pods), pod_views, snapshot.now_s)
        status = reported.status if reported else None
        amounts: Counter[str] = Counter()
        for pod in pods:
            amounts[pod.node] += pod.gpu_pod.gpus
        for number, (node, gpus) in enumerate(sorted(amounts.items())):
            if status and number and status.work_at_risk_gpu_seconds:
                status = replace(status, work_at_risk_gpu_seconds=_NOTHING)
            yield member(MilliGpu(gpus), reported and replace(reported, status=status or reported.status), node)


def placed(preemptor: Gang, snapshot: ClusterSnapshot, victims: Sequence[Gang]) -> dict[Key, str] | None:
    """A node for each pod once ``victims`` have terminated, by all requested resources; None if a pod does not fit."""
    if not snapshot.allows(preemptor, victims):
        return None
    free = snapshot.free(preemptor)
    for pod in (
        pod for gang in victims for pod in gang.pods if pod.node in free and not snapshot.frees_room_for(preemptor, pod)
    ):
        free[pod.node].update(pod.requests)
        free[pod.node]["pods"] += 1000
    result: dict[Key, str] = {}
    for pod in preemptor.pods:
        node = next(
            (
                name
                for name, remaining in sorted(free.items())
                if remaining["pods"] >= 1000
                and all(remaining[key] >= value for key, value in pod.requests.items() if value)
            ),
            None,
        )
        if node is None:
            return None
        free[node].subtract(pod.requests)
        free[node]["pods"] -= 1000
        result[pod.key] = node
    return result
