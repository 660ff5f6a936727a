"""The snapshot with KAI's queues, and whether KAI would preempt for a gang now. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kopt.controllers.preemption.kai.views import LEAST_NOT_PREEMPTED, KaiQueue
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang, placed, refusal
from kopt.controllers.preemption.kube_scheduler.views import PlainPod
from kopt.core.reason import Reason
from kopt.policies.preemption import PreemptionAction


@dataclass(frozen=True)
class KaiSnapshot(ClusterSnapshot):
    """All pods, nodes and queues."""

    queues: Mapping[str, KaiQueue] = field(default_factory=dict)

    def is_ours(self, preemptor: PlainPod) -> bool:
        """Held pods are handled in every namespace."""
        return preemptor.refused or super().is_ours(preemptor)

    def may_preempt(self, gang: Gang, preemptor: Gang) -> bool:
        """Not within the minimum runtime of its queue or of the nearest ancestor that sets one."""
        if not super().may_preempt(gang, preemptor):
            return False
        least_s = next(
            (kai_queue.least_run_s for _, kai_queue in self.lineage(gang.queue) if kai_queue.least_run_s is not None),
            0.0,
        )
        return all(self.now_s - (pod.started_s or self.now_s) >= least_s for pod in gang.pods)

    def lineage(self, queue: str) -> Iterator[tuple[str, KaiQueue]]:
        """A queue and its known ancestors."""
        visited: set[str] = set()
        while queue not in visited and (kai_queue := self.queues.get(queue)) is not None:
            visited.add(queue)
            yield queue, kai_queue
            queue = kai_queue.parent

    def allows(self, preemptor: Gang, victims: Sequence[Gang]) -> bool:
        freed = sum(pod.gpu_pod.gpus for gang in victims for pod in gang.pods if gang.queue == preemptor.queue)
        return all(
            kai_queue.limit is None or self.all_used[name] - freed + requested_gpus(preemptor) <= kai_queue.limit
            for name, kai_queue in self.lineage(preemptor.queue)
        )

    @cached_property
    def used(self) -> Counter[str]:
        """GPUs of the pods of each queue."""
        return _gpus_of(pod for pod in self.pods if pod.node)

    @cached_property
    def all_used(self) -> Counter[str]:
        """The same including all queues below."""
        return self._with_below(self.used)

    @cached_property
    def kept(self) -> Counter[str]:
        """GPUs of non-preemptible pods in a queue and all queues below."""
        kept = (pod for pod in self.pods if pod.node and pod.priority >= LEAST_NOT_PREEMPTED)
        return self._with_below(_gpus_of(kept))

    def _with_below(self, own: Counter[str]) -> Counter[str]:
        total = Counter[str]()
        for queue, gpus in own.items():
            total.update({name: gpus for name, _ in self.lineage(queue)})
        return total


def requested_gpus(preemptor: Gang) -> int:
    return sum(pod.gpu_pod.gpus for pod in preemptor.pods)


def kai_refusal(preemptor: Gang, snapshot: KaiSnapshot) -> Reason | None:
    """Why KAI's victims for a gang do not depend on priority alone; None if we can select the victims."""
    if reason := refusal(preemptor):
        return reason
    if preemptor.queue not in snapshot.queues:
        return Reason("NO_QUEUE", f"There is no KAI Queue {preemptor.queue}.")
    for name, kai_queue in snapshot.lineage(preemptor.queue) if preemptor.priority >= LEAST_NOT_PREEMPTED else ():
        if kai_queue.quota is not None and snapshot.kept[name] + requested_gpus(preemptor) > kai_queue.quota:
            return Reason(
                "QUEUE_QUOTA",
                f"With {preemptor.name}, non-preemptible pods in KAI Queue {name} would exceed its quota.",
            )
    for name, kai_queue in snapshot.queues.items():
        if name != preemptor.queue and kai_queue.quota is not None and snapshot.used[name] > kai_queue.quota:
            return Reason("OTHER_QUEUES", f"KAI Queue {name} uses more than its quota; KAI may reclaim that.")
    return None


def would_preempt(preemptor: Gang, snapshot: KaiSnapshot) -> bool:
    """Whether KAI would preempt in the gang's queue now: it does not fit, and would without lower priorities."""
    if kai_refusal(preemptor, snapshot) or placed(preemptor, snapshot, ()) is not None:
        return False
    lower = [gang for gang in snapshot.gangs() if snapshot.may_preempt(gang, preemptor)]
    return bool(lower) and placed(preemptor, snapshot, lower) is not None


def is_acted_on(preemptor: Gang, snapshot: ClusterSnapshot) -> bool:
    """Whether the victims selected for a gang, by any leader, are gone or terminating.

    Their replacements have the same names and were created later.
    """
    decision = preemptor.pods[0].decision
    if decision is None or decision.action != PreemptionAction.PREEMPT:
        return False
    stays = (
        pod for gang in snapshot.gangs() if gang.name in decision.victims for pod in gang.pods if not pod.terminating
    )
    return not any(plain_pod.created_s < int(decision.at_s) for plain_pod in stays)


def is_awaited(pod: PlainPod, snapshot: ClusterSnapshot) -> bool:
    """Whether the room that a new pod could have is being made for a held pod of higher priority."""
    return any(
        gang.priority > pod.priority and gang.pods[0].resource == pod.resource and is_acted_on(gang, snapshot)
        for gang in snapshot.preemptors()
    )


def _gpus_of(pods: Iterable[PlainPod]) -> Counter[str]:
    total = Counter[str]()
    for pod in pods:
        total[pod.queue] += pod.gpu_pod.gpus
    return total
