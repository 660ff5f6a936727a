"""The moment a decision is about, with KAI's queues; and whether KAI would pre-empt for a gang now. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

    def allows(self, waiting: Gang, leaving: Sequence[Gang]) -> bool:
        own = self.queues.get(waiting.queue)
        if own is None or own.limit is None:
            return True
        gone = sum(pod.view.gpus for gang in leaving for pod in gang.pods if gang.queue == waiting.queue)
        return self.used[waiting.queue] - gone + asks_of(waiting) <= own.limit

    @cached_property
    def used(self) -> Counter[str]:
        """What the pods of each queue have."""
        return _gpus_of(one for one in self.pods if one.node)

    @cached_property
    def kept(self) -> Counter[str]:
        """What nobody can take from them."""
        return _gpus_of(one for one in self.pods if one.node and one.priority >= LEAST_NOT_PREEMPTED)


def asks_of(waiting: Gang) -> int:
    return sum(one.view.gpus for one in waiting.pods)


def kai_refusal(waiting: Gang, moment: KaiMoment) -> Reason | None:
    """Why whom KAI takes for a gang does not depend on priority alone, or nobody; None where it is ours to choose."""
    if reason := refusal(waiting):
        return reason
    own = moment.queues.get(waiting.queue)
    if own is None:
        return Reason("NO_QUEUE", f"There is no KAI Queue {waiting.queue}.")
    stays = waiting.priority >= LEAST_NOT_PREEMPTED
    if stays and own.quota is not None and moment.kept[waiting.queue] + asks_of(waiting) > own.quota:
        return Reason("QUEUE_QUOTA", f"What nobody may pre-empt in KAI Queue {waiting.queue} would be more than its "
                      f"quota with {waiting.name}.")  # fmt: skip
    for name, one in moment.queues.items():
        if name != waiting.queue and one.quota is not None and moment.used[name] > one.quota:
            return Reason("OTHER_QUEUES", f"KAI Queue {name} uses more than its quota; KAI may take that back.")
    return None


def would_preempt(waiting: Gang, moment: KaiMoment) -> bool:
    """Whether KAI, asked now, would look for victims in the gang's queue: there is no room, and would be without those
    of lower priority."""
    if kai_refusal(waiting, moment) or placed(waiting, moment, ()) is not None:
        return False
    lower = [one for one in moment.gangs() if one.queue == waiting.queue and one.priority < waiting.priority]
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
