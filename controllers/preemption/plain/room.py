"""The moment a decision is about: who waits, who runs, and what is free on which node. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.cluster.resources import Key
from kopt.controllers.preemption.plain.views import PlainNode, PlainPod
from kopt.controllers.preemption.saving import Saving
from kopt.controllers.preemption.scene import shortlist
from kopt.controllers.preemption.statuses import heard
from kopt.controllers.webhook.gpus import milli_of
from kopt.core.checkpoint import Estimate
from kopt.core.reason import Reason
from kopt.core.units import MilliGpu
from kopt.policies.preemption import Member, RunningGang, Scene, Waiting
from kopt.policies.saving import USUAL_S, SaveState

_NOTHING = Estimate(0.0, 0.0, 0.0)
_HANGS_S = 60.0
"""A pod that is there so long after it should have ended may stay for ever."""


@dataclass(frozen=True)
class Gang:
    """Pods that live and die together."""

    pods: tuple[PlainPod, ...]

    @property
    def name(self) -> str:
        """Namespace and name of the owner; of a pod's own where it has none."""
        first = min(self.pods, key=lambda one: one.key)
        return f"{first.key[0]}/{first.owner.get('name') or first.key[1]}"

    @property
    def priority(self) -> int:
        return max(one.priority for one in self.pods)

    @property
    def queue(self) -> str:
        return self.pods[0].queue

    @property
    def going(self) -> bool:
        """All of it is on its way out, whoever wanted that."""
        return all(one.going for one in self.pods)

    @property
    def owner_uid(self) -> str:
        return self.pods[0].view.owner_uid

    @property
    def created_s(self) -> float:
        return min(one.created_s for one in self.pods)

    @property
    def complete_s(self) -> float:
        """No pod was added since, in whole seconds."""
        return max(one.created_s for one in self.pods)


@dataclass(frozen=True)
class Moment:
    """All pods and nodes; ``preemptions`` within a day by the owner's uid, ``ours``: namespaces to act in."""

    now_s: float
    pods: Sequence[PlainPod]
    nodes: Mapping[str, PlainNode]
    preemptions: Mapping[str, int] = field(default_factory=dict)
    ours: frozenset[str] = frozenset()
    stale_s: float = 75.0

    def is_ours(self, waiting: PlainPod) -> bool:
        return waiting.key[0] in self.ours

    def allows(self, _waiting: Gang, _leaving: Sequence[Gang]) -> bool:
        """Whether there may be a place on a node for all of its pods once some have left."""
        return True

    def leaves_to(self, waiting: Gang, pod: PlainPod) -> bool:
        """It is on its way out and does not hang there, and nobody else was to have its room."""
        free = pod.evicting is None or pod.evicting.waiting == waiting.name
        return pod.going and free and self.now_s < pod.ends_s + _HANGS_S

    def may_take(self, gang: Gang, waiting: Gang) -> bool:
        """Whether a gang could make room for one that waits at all."""
        return gang.queue == waiting.queue and gang.priority < waiting.priority and not gang.going

    def gangs(self) -> list[Gang]:
        """Those that run, are about to, or have not quite ended: these come first."""
        found: dict[tuple[str, str], list[PlainPod]] = defaultdict(list)
        for one in self.pods:
            if one.node and one.batch and one.key[0] in self.ours:
                found[one.gang].append(one)
        gangs = [Gang(tuple(pods)) for pods in found.values() if any(one.view.gpus for one in pods)]
        return sorted(gangs, key=lambda one: not one.going)

    def waiting(self) -> list[Gang]:
        """Those of which a pod found no room, the most important first."""
        found: dict[tuple[str, str], list[PlainPod]] = defaultdict(list)
        for one in self.pods:
            if one.open and not one.going and one.resource and self.is_ours(one):
                found[one.gang].append(one)
        gangs = [Gang(tuple(sorted(pods, key=lambda one: one.key))) for pods in found.values()
                 if any(one.refused for one in pods)]  # fmt: skip
        return sorted(gangs, key=lambda one: (-one.priority, one.created_s, one.name))

    def free(self, waiting: Gang) -> dict[str, Counter[str]]:
        """What is left on nodes that the pods may use, by resource, with what those leave that are on their way out;
        promises to others of no less priority are kept."""
        own, first = {one.view.uid for one in waiting.pods}, waiting.pods[0]
        left = {name: Counter(node.room) for name, node in self.nodes.items() if node.may_take(first)}
        for one in self.pods:
            promised = one.promised if one.priority >= waiting.priority and one.view.uid not in own else ""
            if (place := one.node or promised) in left and not self.leaves_to(waiting, one):
                left[place].subtract(one.asks)
                left[place]["pods"] -= 1000
        return left


def refusal(waiting: Gang) -> Reason | None:
    """Why it is not ours to choose for it; None where it is."""
    if not all(one.simple for one in waiting.pods):
        return Reason("NOT_SIMPLE", f"{waiting.name} has affinities, spreads or claims; where it fits is not known.")
    if len({tuple(sorted(one.asks.items())) for one in waiting.pods}) > 1:
        return Reason("NOT_ALIKE", f"The pods of {waiting.name} ask for different amounts.")
    return None


def scene_of(waiting: Gang, moment: Moment, budget_s: float) -> Scene:
    resource, free = waiting.pods[0].resource, moment.free(waiting)
    per_pod = _gpus(resource, waiting.pods[0].asks[resource])
    room = {name: _gpus(resource, max(0, left[resource])) for name, left in free.items()}
    taken = [one for one in moment.gangs() if moment.may_take(one, waiting)]
    names = Counter(one.name for one in taken)
    # Of two owners of one name none is chosen.
    gangs = [gang_of(one, moment, waiting.created_s) for one in taken if names[one.name] == 1
             and any(pod.node in free and pod.resource == resource for pod in one.pods)]  # fmt: skip
    return Scene(
        Waiting(waiting.name, "", waiting.priority, per_pod, waiting.created_s, budget_s, len(waiting.pods)),
        shortlist(gangs, per_pod * len(waiting.pods)), moment.now_s, {}, room,
    )  # fmt: skip


def gang_of(gang: Gang, moment: Moment, since_s: float = float("-inf")) -> RunningGang:
    saving = Saving.of([one.view for one in gang.pods], moment.now_s, since_s)
    started = [one.started_s for one in gang.pods if one.started_s is not None]
    return RunningGang(
        gang.name, "", gang.priority, tuple(_members(gang, moment)), max(started, default=moment.now_s),
        preemptions=moment.preemptions.get(gang.owner_uid, 0),
        saves_s=USUAL_S if saving.state is SaveState.ASKABLE else None, saved_at_s=saving.saved_at_s,
    )  # fmt: skip


def _members(gang: Gang, moment: Moment) -> Iterable[Member]:
    """One for each log and node; what would be lost stands on the first of a log alone."""
    logs: dict[str, list[PlainPod]] = defaultdict(list)
    for one in gang.pods:
        logs[one.view.owner_uid or one.view.uid].append(one)
    for pods in logs.values():
        said = heard([one.view.notes for one in pods], moment.now_s, moment.stale_s)
        status = said.status if said else None
        amounts: Counter[str] = Counter()
        for one in pods:
            amounts[one.node] += one.view.gpus
        for number, (node, gpus) in enumerate(sorted(amounts.items())):
            if status and number and status.work_at_risk_gpu_seconds:
                status = replace(status, work_at_risk_gpu_seconds=_NOTHING)
            yield Member(MilliGpu(gpus), status, said.at_s if said else 0.0, node)


def placed(waiting: Gang, moment: Moment, leaving: Sequence[Gang]) -> dict[Key, str] | None:
    """A node for each pod once some have left, by all that they ask for; None where one finds none."""
    if not moment.allows(waiting, leaving):
        return None
    free = moment.free(waiting)
    for pod in (
        pod for gang in leaving for pod in gang.pods if pod.node in free and not moment.leaves_to(waiting, pod)
    ):
        free[pod.node].update(pod.asks)
        free[pod.node]["pods"] += 1000
    found: dict[Key, str] = {}
    for pod in waiting.pods:
        node = next((name for name, left in sorted(free.items()) if left["pods"] >= 1000
                     and all(left[key] >= value for key, value in pod.asks.items() if value)), None)  # fmt: skip
        if node is None:
            return None
        free[node].subtract(pod.asks)
        free[node]["pods"] -= 1000
        found[pod.key] = node
    return found


def _gpus(resource: str, thousandths: int) -> MilliGpu:
    return MilliGpu(thousandths * milli_of(resource, 1) // 1000)
