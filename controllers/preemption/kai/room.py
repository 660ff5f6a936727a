"""The moment a decision is about, with KAI's queues; and whether KAI would pre-empt for a gang now. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kopt.controllers.preemption.kai.views import LEAST_NOT_PREEMPTED, KaiQueue
from kopt.controllers.preemption.plain.room import Gang, Moment, placed, refusal
from kopt.controllers.preemption.plain.views import PlainPod
from kopt.core.reason import Reason
from kopt.policies.preemption import Verdict


@dataclass(frozen=True)
class KaiMoment(Moment):
    """All pods, nodes and queues."""

    queues: Mapping[str, KaiQueue] = field(default_factory=dict)

    def is_ours(self, waiting: PlainPod) -> bool:
        """Who is held is heard wherever it is."""
        return waiting.refused or super().is_ours(waiting)

    def may_take(self, gang: Gang, waiting: Gang) -> bool:
        """Not within the time for which its queue, or the nearest above it that says so, protects it."""
        if not super().may_take(gang, waiting):
            return False
        least_s = next((one.least_run_s for _, one in self.lineage(gang.queue) if one.least_run_s is not None), 0.0)
        return all(self.now_s - (one.started_s or self.now_s) >= least_s for one in gang.pods)

    def lineage(self, queue: str) -> Iterator[tuple[str, KaiQueue]]:
        """A queue and those above it, as far as they are known."""
        seen: set[str] = set()
        while queue not in seen and (found := self.queues.get(queue)) is not None:
            seen.add(queue)
            yield queue, found
            queue = found.parent

    def allows(self, waiting: Gang, leaving: Sequence[Gang]) -> bool:
        gone = sum(pod.view.gpus for gang in leaving for pod in gang.pods if gang.queue == waiting.queue)
        return all(one.limit is None or self.all_used[name] - gone + asks_of(waiting) <= one.limit
                   for name, one in self.lineage(waiting.queue))  # fmt: skip

    @cached_property
    def used(self) -> Counter[str]:
        """What the pods of each queue have."""
        return _gpus_of(one for one in self.pods if one.node)

    @cached_property
    def all_used(self) -> Counter[str]:
        """With those of the queues below it."""
        return self._with_below(self.used)

    @cached_property
    def kept(self) -> Counter[str]:
        """What nobody can take from a queue and those below it."""
        kept = (one for one in self.pods if one.node and one.priority >= LEAST_NOT_PREEMPTED)
        return self._with_below(_gpus_of(kept))

    def _with_below(self, own: Counter[str]) -> Counter[str]:
        total = Counter[str]()
        for queue, gpus in own.items():
            total.update({name: gpus for name, _ in self.lineage(queue)})
        return total


def asks_of(waiting: Gang) -> int:
    return sum(one.view.gpus for one in waiting.pods)


def kai_refusal(waiting: Gang, moment: KaiMoment) -> Reason | None:
    """Why whom KAI takes for a gang does not depend on priority alone, or nobody; None where it is ours to choose."""
    if reason := refusal(waiting):
        return reason
    if waiting.queue not in moment.queues:
        return Reason("NO_QUEUE", f"There is no KAI Queue {waiting.queue}.")
    for name, one in moment.lineage(waiting.queue) if waiting.priority >= LEAST_NOT_PREEMPTED else ():
        if one.quota is not None and moment.kept[name] + asks_of(waiting) > one.quota:
            return Reason("QUEUE_QUOTA", f"What nobody may pre-empt in KAI Queue {name} would be more than its quota "
                          f"with {waiting.name}.")  # fmt: skip
    for name, one in moment.queues.items():
        if name != waiting.queue and one.quota is not None and moment.used[name] > one.quota:
            return Reason("OTHER_QUEUES", f"KAI Queue {name} uses more than its quota; KAI may take that back.")
    return None


def would_preempt(waiting: Gang, moment: KaiMoment) -> bool:
    """Whether KAI, asked now, would look for victims in the gang's queue: there is no room, and would be without those
    of lower priority."""
    if kai_refusal(waiting, moment) or placed(waiting, moment, ()) is not None:
        return False
    lower = [one for one in moment.gangs() if moment.may_take(one, waiting)]
    return bool(lower) and placed(waiting, moment, lower) is not None


def is_acted_on(waiting: Gang, moment: Moment) -> bool:
    """Whether those who were chosen for a gang are gone, or going: by whoever led then.

    Their successors have the same names and were created later.
    """
    verdict = waiting.pods[0].verdict
    if verdict is None or verdict.word != Verdict.PREEMPT:
        return False
    stays = (one for gang in moment.gangs() if gang.name in verdict.victims for one in gang.pods if not one.going)
    return not any(one.created_s < int(verdict.at_s) for one in stays)


def is_awaited(pod: PlainPod, moment: Moment) -> bool:
    """Whether the room that a new pod could have is being made for somebody of higher priority who is held."""
    return any(
        one.priority > pod.priority and one.pods[0].resource == pod.resource and is_acted_on(one, moment)
        for one in moment.waiting()
    )


def _gpus_of(pods: Iterable[PlainPod]) -> Counter[str]:
    total = Counter[str]()
    for one in pods:
        total[one.queue] += one.view.gpus
    return total
