"""Which gang of a deadlock gives up its nodes, and for which other: what loses least work, and lets another start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from kopt.core.reason import Reason
from kopt.policies.gangs.half import half_placed
from kopt.policies.gangs.model import Gang, GangPod, GangSettings, GangSnapshot, loss_of
from kopt.policies.gangs.waits import deadlocks, fits, with_freed

MOST_CANDIDATES = 12
"""All sets of the cheapest so many are compared; beyond, the cheapest are released one after another."""


@dataclass(frozen=True)
class Surplus:
    """Pods that a gang that runs has beyond its minimum: it goes on without them."""

    gang: Gang
    pods: tuple[GangPod, ...]

    @property
    def name(self) -> str:
        return self.gang.name


@dataclass(frozen=True)
class Release:
    """``gangs`` give up all of their nodes and ``surplus`` some pods, so that ``beneficiary`` reaches its minimum.

    ``deadlock``: the names of all gangs that wait for each other. ``lost_gpu_s``: what it loses at most.
    """

    gangs: tuple[Gang, ...]
    beneficiary: Gang
    deadlock: tuple[str, ...]
    lost_gpu_s: float
    reason: Reason
    surplus: tuple[Surplus, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    name: str
    pods: tuple[GangPod, ...]
    cost: tuple[float, int, float]
    """Lost GPU-seconds, priority, and minus the last progress: the youngest of equals goes first."""
    source: Gang | Surplus


def releases(snapshot: GangSnapshot, settings: GangSettings) -> list[Release]:
    """One for each deadlock among gangs that are half-placed for longer than the hold; none where nothing may be
    stopped, or nothing would start by it."""
    result = []
    for members in deadlocks(half_placed(snapshot, settings), snapshot):
        release = _release(members, snapshot)
        if release is not None:
            result.append(release)
    return result


def surplus_of(gang: Gang) -> Surplus | None:
    """The newest bound pods beyond the minimum; None where there are none, or the gang may not be touched."""
    extra = len(gang.bound) - gang.minimum
    if extra <= 0 or gang.spared is not None:
        return None
    newest = sorted(gang.bound, key=lambda pod: (-pod.bound_s, pod.name))[:extra]
    return Surplus(gang, tuple(newest))


def _release(members: Sequence[Gang], snapshot: GangSnapshot) -> Release | None:
    candidates = _candidates(members, snapshot)
    for victims in _sets(candidates):
        pods = [pod for each in victims for pod in each.pods]
        room, names = with_freed(snapshot.free, pods), {each.name for each in victims}
        # The one that has waited longest among the most important starts.
        for gang in sorted(members, key=lambda each: (-each.priority, each.created_s, each.name)):
            if gang.name not in names and fits(gang, room):
                return _decided(victims, gang, members)
    return None


def _candidates(members: Sequence[Gang], snapshot: GangSnapshot) -> list[_Candidate]:
    needed = frozenset(node for gang in members for node in gang.nodes)
    result = [
        _Candidate(gang.name, gang.bound, (loss_of(gang, snapshot), gang.priority, -gang.since_s), gang)
        for gang in members
        if gang.spared is None
    ]
    highest = max(gang.priority for gang in members)
    for gang in snapshot.gangs:
        spares = gang.priority <= highest and gang.name not in snapshot.kept_whole
        surplus = surplus_of(gang) if spares else None
        if surplus is not None and any(pod.node in needed for pod in surplus.pods):
            cost = loss_of(gang, snapshot, surplus.pods), gang.priority, -gang.since_s
            result.append(_Candidate(gang.name, surplus.pods, cost, surplus))
    return sorted(result, key=lambda each: (each.cost, each.name))


def _sets(candidates: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, ...]]:
    """By rising loss; of equal loss the fewest first."""
    near = candidates[:MOST_CANDIDATES]
    subsets = [victims for size in range(1, len(near) + 1) for victims in combinations(near, size)]
    subsets.sort(
        key=lambda victims: (sum(each.cost[0] for each in victims), len(victims), [each.cost for each in victims])
    )
    yield from subsets
    for size in range(MOST_CANDIDATES + 1, len(candidates) + 1):
        yield tuple(candidates[:size])


def _decided(victims: Sequence[_Candidate], beneficiary: Gang, members: Sequence[Gang]) -> Release:
    gangs = tuple(each.source for each in victims if isinstance(each.source, Gang))
    surplus = tuple(each.source for each in victims if isinstance(each.source, Surplus))
    lost_gpu_s = sum(each.cost[0] for each in victims)
    names = ", ".join(each.name for each in victims)
    stuck = ", ".join(sorted(gang.name for gang in members))
    text = (
        f"{stuck} each hold nodes that another of them needs, and none can start. {names} gives up "
        f"{'its pods beyond the minimum' if surplus and not gangs else 'its nodes'}, which loses least "
        f"({lost_gpu_s / 3600:.2f} GPU-hours at most), so that {beneficiary.name} starts."
    )
    numbers = {"gangs": len(members), "lost_gpu_s": lost_gpu_s}
    reason = Reason("GANG_DEADLOCK", text, numbers)
    return Release(gangs, beneficiary, tuple(gang.name for gang in members), lost_gpu_s, reason, surplus)
