"""How the GPUs of a node are divided at one time: what each pod is charged, and why the rest is idle."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.cost.metering import Demand, Idle, MeteredNode, MeteredPod, Rule
from kopt.core.units import WHOLE_GPU

Mix = Mapping[tuple[int, int], float]
"""(GPUs, milli-GPU of each) → share of the pods that come; sums to 1, or is empty where nothing is known."""
_MOST_PARTS = 100
"""Of a GPU: what a pod may claim by a number that somebody has written is bounded."""


def recent_mix(demands: Iterable[Demand], rule: Rule) -> Mix:
    """Of the pods that came lately."""
    counts = Counter((demand.count, demand.charged(rule)) for demand in demands)
    total = sum(counts.values())
    return {kind: number / total for kind, number in counts.items()}


@dataclass
class _Device:
    """One GPU: what its holders are charged before it is scaled to at most the whole."""

    held: dict[str, int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)

    @property
    def sum(self) -> int:
        return sum(self.held.values())

    def add(self, uid: str, milli: int, group: str) -> None:
        self.held[uid] = self.held.get(uid, 0) + milli
        self.groups |= {group} - {""}


def shares(
    node: MeteredNode, pods: Iterable[MeteredPod], rule: Rule, mix: Mix, *, observed: bool = True
) -> Mapping[str, int]:
    """Milli-GPU by subject; they sum to the node's GPUs, and none is 0.

    Which GPU a pod has is known where ``indices`` or a group say so; parts without either are packed as best fit does,
    in the order in which pods started.
    """
    if not node.gpus:
        return {}
    devices = [_Device() for _ in range(node.gpus)]
    for pod in sorted(pods, key=lambda pod: (not pod.demand.indices, pod.started_ms, pod.uid)):
        _assign(devices, pod.uid, pod.demand, pod.demand.charged(rule))
    result: Counter[str] = Counter()
    free = []
    for device in devices:
        charged = _scaled(device.held, WHOLE_GPU)
        result.update(charged)
        free.append(WHOLE_GPU - sum(charged.values()))
    result.update(_idle(node, free, mix, observed=observed))
    return {subject: milli for subject, milli in result.items() if milli}


def _assign(devices: Sequence[_Device], uid: str, demand: Demand, milli: int) -> None:
    """Whole GPUs are different ones; several parts may be of one GPU, as partitions are."""
    named = [devices[index] for index in demand.indices if 0 <= index < len(devices)]
    free = list(devices)
    for _ in range(min(demand.count, len(devices) if milli == WHOLE_GPU else _MOST_PARTS * len(devices))):
        device = named.pop(0) if named else _best(free, milli, demand.group)
        device.add(uid, milli, demand.group)
        if milli == WHOLE_GPU:
            free = [other for other in free if other is not device]
            named = [other for other in named if other is not device]


def _best(devices: Sequence[_Device], milli: int, group: str) -> _Device:
    """The group's, else the fullest with room, else the emptiest."""
    if group and (same := [device for device in devices if group in device.groups]):
        return same[0]
    with_room = [device for device in devices if device.sum + milli <= WHOLE_GPU]
    return max(with_room, key=lambda device: device.sum) if with_room else min(devices, key=lambda device: device.sum)


def _scaled(held: Mapping[str, int], limit: int) -> Mapping[str, int]:
    total = sum(held.values())
    return held if total <= limit else divided(limit, held)


def divided(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """``amount`` by weights, as integers that sum to it: the largest remainders are rounded up, ties by name."""
    total = sum(weights.values())
    result = {name: amount * weight // total for name, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda name: (-(amount * weights[name] % total), name))
    for name in by_remainder[: amount - sum(result.values())]:
        result[name] += 1
    return result


def _idle(node: MeteredNode, free: Sequence[int], mix: Mix, *, observed: bool) -> Mapping[str, int]:
    total = sum(free)
    if not observed:
        return {Idle.UNOBSERVED.subject: total}
    if node.closed is Idle.UNAVAILABLE:
        return {Idle.UNAVAILABLE.subject: total}
    # Which GPUs are broken nothing says: of those that nobody has, any are as good as others.
    unavailable = WHOLE_GPU * min(node.broken, sum(milli == WHOLE_GPU for milli in free))
    if node.closed is not None:
        return {Idle.UNAVAILABLE.subject: unavailable, node.closed.subject: total - unavailable}
    usable = sorted(free)[: len(free) - unavailable // WHOLE_GPU]
    stranded = stranded_milli(usable, mix)
    return {
        Idle.UNAVAILABLE.subject: unavailable,
        Idle.UNALLOCATED.subject: total - unavailable - stranded,
        Idle.STRANDED.subject: stranded,
    }


def stranded_milli(free: Sequence[int], mix: Mix) -> int:
    """Milli-GPU that the next pod could not use, in expectation over the mix: the fragmentation of Weng et al. (ATC
    2023), by GPUs alone. ``free``: of each GPU."""
    whole = sum(milli == WHOLE_GPU for milli in free)
    expected = 0.0
    for (count, share), weight in mix.items():
        if share == WHOLE_GPU:
            usable = whole * WHOLE_GPU if whole >= count else 0
        else:
            usable = sum(milli for milli in free if milli >= share)
        expected += weight * usable
    return round(sum(free) - expected) if mix else 0
