"""What the native scheduler would take, left to its own rule, and which gangs are kept from it.

Its rule is that of Kueue within a queue: the lowest priority first, then the newest; whoever is not needed after all is
spared. Where that is expected to lose least, the best we can do is to stand aside: a gang of whose checkpoints nothing
is known has at most the work since its start to lose, and is never ours to take.
"""

import math
from collections.abc import Iterable, Sequence

from kopt.policies.preemption.evidence import Outlook, cost_of, risk_gpu_s
from kopt.policies.preemption.search import Found, Need, Option
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState
from kopt.policies.preemption.words import Scene

OUT_OF_REACH = frozenset({"GOING", "NOT_PREEMPTIBLE", "PRIORITY", "QUOTA", "QUEUE_UNKNOWN"})
"""Whom these of our rules bar, the native scheduler does not take either."""
_WRITE = frozenset({"WRITING", "NOT_SAFE", "WRITE_DUE"})


def kept_from_it(
    outlooks: Iterable[Outlook], state: PreemptionState, now_s: float, settings: PreemptionSettings
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Gangs that are or may be in a write, to be guarded, and those that have been so for longer than is allowed."""
    guarded: list[str] = []
    unguarded: list[str] = []
    safe_at_s = {one.gang: one.safe_at_s for one in state.rhythms}
    for one in outlooks:
        if one.spared is None or one.spared.code not in _WRITE:
            continue
        since_s = max(one.gang.started_at_s, safe_at_s.get(one.gang.name) or -math.inf)
        (unguarded if now_s - since_s >= settings.max_protection_s else guarded).append(one.gang.name)
    return tuple(guarded), tuple(unguarded)


def native_choice(scene: Scene, need: Need, reach: Iterable[Outlook], settings: PreemptionSettings) -> Found | None:
    """Whom of ``reach`` the native scheduler would take now, and what that is expected to lose; None if nobody."""
    order = sorted(reach, key=lambda one: (one.gang.priority, -one.gang.started_at_s, one.gang.name))
    taken = _in_order([_option(one, scene, settings) for one in order], need)
    if not taken:
        return None
    names = tuple(sorted(one.name for one in taken))
    return Found(names, sum(one.cost for one in taken), sum(one.gpus for one in taken))


def _option(one: Outlook, scene: Scene, settings: PreemptionSettings) -> Option:
    gang = one.gang
    return Option(gang.name, expected_loss(one, scene.now_s, settings), gang.gpus, gang.by_node, scene.lenders(gang))


def expected_loss(one: Outlook, now_s: float, settings: PreemptionSettings) -> int:
    """Milli-GPU-seconds: what its statuses say; where they tell of no checkpoint, all since the start of this run."""
    gang, known = one.gang, one.cost_at(now_s)
    if known is not None:
        return known
    ran_s = max(0.0, now_s - gang.started_at_s)
    restart_s = settings.restart_s if gang.restart_s is None else gang.restart_s
    lost = 0
    for member in gang.members:
        if member.status and member.status.evidence and risk_gpu_s(member) is not None:
            lost += cost_of(member, now_s)
        else:
            lost += math.ceil(member.gpus * (ran_s + restart_s))
    return lost


def _in_order(options: Sequence[Option], need: Need) -> list[Option]:
    """The first of them that suffice, without those that are not needed then; none where all do not."""
    free, slack, taken = dict(need.free), dict(need.slack), list[Option]()
    for one in options:
        if need.met_by(free):
            break
        if all(slack.get(queue, one.gpus) >= one.gpus for queue in one.queues):
            _move(one, free, slack)
            taken.append(one)
    if not need.met_by(free):
        return []
    for one in tuple(taken):
        left = dict(free)
        for node, amount in one.on:
            left[node] -= amount
        if need.met_by(left):
            free = left
            taken.remove(one)
    return taken


def _move(one: Option, free: dict[str, int], slack: dict[str, int]) -> None:
    for node, amount in one.on:
        free[node] = free.get(node, 0) + amount
    for queue in one.queues:
        slack[queue] = slack.get(queue, one.gpus) - one.gpus
