"""The moment a decision is about, from what the cluster shows: pure, one waiting Workload and its ClusterQueue.

Handled are queues outside of cohorts with one flavour for each resource: there Kueue takes from the same queue only,
and nothing but priority decides whom it may take.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.controllers.preemption.saving import Saving
from kopt.controllers.preemption.statuses import members_of
from kopt.controllers.preemption.views import ClusterQueueView, PodView, WorkloadView
from kopt.controllers.webhook.gpus import milli_of
from kopt.core.reason import Reason
from kopt.core.units import MilliGpu
from kopt.policies.preemption import QueueShare, RunningGang, Scene, Waiting
from kopt.policies.saving import USUAL_S, SaveState

HIGHEST_PRIORITY = 2**31 - 2
MOST_CANDIDATES = 24
"""That the policy weighs against each other: its search is over sets, at every moment that may be better."""
_PREEMPTS = ("LowerPriority", "LowerOrNewerEqualPriority")


@dataclass(frozen=True)
class Facts:
    """A ClusterQueue at a moment. ``workloads`` are those of it that have quota; ``pods`` and ``preemptions`` (within a
    day, by anyone) by the Workload's uid. Requests to save that were over before ``asked_since_s`` do not count."""

    now_s: float
    queue: ClusterQueueView
    workloads: Sequence[WorkloadView]
    pods: Mapping[str, Sequence[PodView]] = field(default_factory=dict)
    preemptions: Mapping[str, int] = field(default_factory=dict)
    stale_s: float = 75.0
    asked_since_s: float = float("-inf")

    @property
    def used(self) -> Counter[tuple[str, str]]:
        total: Counter[tuple[str, str]] = Counter()
        for one in self.workloads:
            if not one.pending and not one.finished:
                total.update(one.uses)
        return total

    def saving(self, view: WorkloadView) -> Saving:
        return Saving.of(self.pods.get(view.uid, ()), self.now_s, self.asked_since_s)


def refusal(waiting: WorkloadView, facts: Facts) -> Reason | None:
    """Why whom Kueue takes for a Workload is not ours to choose; None where it is."""
    queue, resource = facts.queue, waiting.gpu_resource
    if not resource:
        return Reason("NOT_ONE_RESOURCE", f"{waiting.name} does not ask for GPUs of exactly one resource.")
    if not queue.active:
        return Reason("QUEUE_STOPPED", f"ClusterQueue {queue.name} admits nothing now.")
    if queue.preempts not in _PREEMPTS:
        return Reason("QUEUE_NEVER_PREEMPTS", f"ClusterQueue {queue.name} has withinClusterQueue: {queue.preempts}.")
    if one := next((one for one in (waiting, *facts.workloads) if one.mirrored and not one.finished), None):
        return Reason("MULTIKUEUE", f"MultiKueue would delete the job of {one.name} if it had another priority for a "
                      "moment than in its other cluster.")  # fmt: skip
    if queue.cohort:
        return Reason("COHORT", f"ClusterQueue {queue.name} is in cohort {queue.cohort}; whom Kueue takes there does "
                      "not depend on priority alone.")  # fmt: skip
    if waiting.priority > HIGHEST_PRIORITY:
        return Reason("PRIORITY_TOO_HIGH", f"Nothing can be covered from priority {waiting.priority}.")
    for name in sorted(queue.resources & waiting.asks.keys()):
        if len(queue.flavors(name)) != 1:
            return Reason("SEVERAL_FLAVOURS", f"ClusterQueue {queue.name} has {len(queue.flavors(name))} flavours of "
                          f"{name}; which one Kueue chooses is not known.")  # fmt: skip
    if not queue.flavors(resource):
        return Reason("NOT_IN_QUEUE", f"ClusterQueue {queue.name} has no {resource}.")
    if lacking(waiting, facts, freed=facts.used):
        return Reason("TOO_LARGE", f"{waiting.name} asks for more than all of ClusterQueue {queue.name}.")
    return None


def lacking(waiting: WorkloadView, facts: Facts, freed: Mapping[tuple[str, str], int] | None = None) -> list[str]:
    """Resources of which the queue has too little for a Workload once ``freed`` is given back."""
    used, gone = facts.used, freed or {}
    return sorted(
        resource for place, quota in facts.queue.quota.items() if (resource := place[1]) in waiting.asks
        and used[place] - gone.get(place, 0) + waiting.asks[resource] > quota
    )  # fmt: skip


def would_preempt(waiting: WorkloadView, facts: Facts) -> bool:
    """Whether Kueue, asked now, would look for victims: there is too little, and somebody of lower priority."""
    if refusal(waiting, facts) or not lacking(waiting, facts):
        return False
    return any(one.running and one.priority < waiting.priority for one in facts.workloads)


def scene_of(waiting: WorkloadView, facts: Facts, budget_s: float) -> Scene:
    """For a Workload without ``refusal``. A queue's free GPUs are those of its quota, wherever they lie; less than none
    where its quota became less."""
    place = _place(waiting, facts.queue)
    used = facts.used[place]
    quota = facts.queue.quota[place]
    name = facts.queue.name
    share = QueueShare(name, _gpus(place, quota), _gpus(place, used))
    gpus = _gpus(place, waiting.asks[place[1]])
    return Scene(
        Waiting(waiting.name, name, waiting.priority, gpus, waiting.came_s, budget_s),
        shortlist([gang_of(one, place, facts) for one in candidates(waiting, facts)], gpus),
        facts.now_s, {name: share}, {"": share.guaranteed - share.used},
    )  # fmt: skip


def candidates(waiting: WorkloadView, facts: Facts) -> list[WorkloadView]:
    """Who runs in the queue with GPUs of the kind that is asked for, of the lowest priorities that have enough.

    Whoever is taken although others of lower priority run would take their place in turn.
    """
    place = _place(waiting, facts.queue)
    running = [one for one in facts.workloads if one.running and one.uses.get(place) and one.uid != waiting.uid]
    left = waiting.asks[place[1]] - (facts.queue.quota[place] - facts.used[place])
    for level in sorted({one.priority for one in running}):
        left -= sum(one.uses[place] for one in running if one.priority == level)
        if left <= 0:
            return [one for one in running if one.priority <= level]
    return running


def shortlist(gangs: Sequence[RunningGang], wanted: int) -> tuple[RunningGang, ...]:
    """Those among whom the search can be done at once: the cheapest now, and the newest, whom Kueue would take; of both
    at least as many as free what is asked for. Everybody where they are few."""
    if len(gangs) <= MOST_CANDIDATES:
        return tuple(gangs)
    chosen: dict[str, RunningGang] = {}
    for order in (sorted(gangs, key=_lost_gpu_s), sorted(gangs, key=lambda one: (one.priority, -one.started_at_s))):
        freed = 0
        for number, one in enumerate(order):
            if number >= MOST_CANDIDATES // 2 and freed >= wanted:
                break
            chosen[one.name] = one
            freed += one.gpus
    return tuple(chosen.values())


def _lost_gpu_s(gang: RunningGang) -> tuple[bool, float, str]:
    """Who is safe first, by GPU-seconds lost for each GPU; then who may become so."""
    found = [one.status for one in gang.members]
    risks = [one.work_at_risk_gpu_seconds for one in found if one and one.safe]
    lost = sum(one.value for one in risks if one) / max(1, gang.gpus)
    return len(risks) < len(found), lost if any(one and one.evidence for one in found) else float("inf"), gang.name


def gang_of(view: WorkloadView, place: tuple[str, str], facts: Facts) -> RunningGang:
    gpus = _gpus(place, view.uses[place])
    members = members_of(gpus, facts.pods.get(view.uid, ()), facts.now_s, facts.stale_s)
    saving = facts.saving(view)
    return RunningGang(view.name, facts.queue.name, view.priority, members, view.reserved_s or 0.0,
                       preemptible=view.holder in ("", "preemption"),
                       preemptions=facts.preemptions.get(view.uid, 0),
                       saves_s=USUAL_S if saving.state is SaveState.ASKABLE else None,
                       saved_at_s=saving.saved_at_s)  # fmt: skip


def freed_by(victims: Iterable[WorkloadView]) -> Counter[tuple[str, str]]:
    total: Counter[tuple[str, str]] = Counter()
    for one in victims:
        total.update(one.uses)
    return total


def to_cover(waiting: WorkloadView, facts: Facts, spared: Iterable[str]) -> list[WorkloadView]:
    """Who must not be taken and could be: everybody with less than the priority that covers, but ``spared`` uids."""
    named = set(spared)
    return [one for one in facts.workloads if one.running and one.uid not in named and one.uid != waiting.uid
            and one.priority <= waiting.priority and not one.mirrored]  # fmt: skip


def too_little(waiting: WorkloadView, missing: Sequence[str]) -> Reason:
    text = f"{waiting.name} also lacks {', '.join(missing)}, which is not weighed; Kueue goes by its own rules."
    return Reason("OTHER_RESOURCES", text)


def _place(waiting: WorkloadView, queue: ClusterQueueView) -> tuple[str, str]:
    resource = waiting.gpu_resource
    return queue.flavors(resource)[0], resource


def _gpus(place: tuple[str, str], thousandths: int) -> MilliGpu:
    return MilliGpu(thousandths * milli_of(place[1], 1) // 1000)
