"""The native scheduler's own choice of victims, and the gangs that have to be protected from it.

Its rule is Kueue's: gangs of other queues first, then lowest priority, then newest; gangs that turn out not to be
needed are spared. Where that is expected to lose least, the best decision is to stand aside: a gang without known
checkpoints can lose at most the work since its start, and is never one of our victims.
"""

import math
from collections.abc import Iterable, Sequence

from kopt.policies.preemption.evidence import Outlook, cost_of, risk_gpu_s
from kopt.policies.preemption.model import Snapshot
from kopt.policies.preemption.search import Need, Option, VictimSet
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState

OUT_OF_REACH = frozenset({"GOING", "NOT_PREEMPTIBLE", "PRIORITY", "QUOTA", "QUEUE_UNKNOWN"})
"""The native scheduler does not preempt gangs that these rules bar either."""
_WRITE = frozenset({"WRITING", "NOT_SAFE", "WRITE_DUE"})


def gangs_to_guard(
    outlooks: Iterable[Outlook], state: PreemptionState, now_s: float, settings: PreemptionSettings
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Gangs to guard because they are or may be writing, and those guarded for longer than is allowed."""
    guarded: list[str] = []
    unguarded: list[str] = []
    safe_at_s = {rhythm.gang: rhythm.safe_at_s for rhythm in state.rhythms}
    for outlook in outlooks:
        if outlook.spared is None or outlook.spared.code not in _WRITE:
            continue
        since_s = max(outlook.gang.started_at_s, safe_at_s.get(outlook.gang.name) or -math.inf)
        (unguarded if now_s - since_s >= settings.max_protection_s else guarded).append(outlook.gang.name)
    return tuple(guarded), tuple(unguarded)


def native_choice(
    snapshot: Snapshot, need: Need, reach: Iterable[Outlook], settings: PreemptionSettings
) -> VictimSet | None:
    """The gangs of ``reach`` that the native scheduler would preempt now, and the expected loss; None if none."""
    order = sorted(
        reach,
        key=lambda outlook: (
            not snapshot.lenders(outlook.gang),
            outlook.gang.priority,
            -outlook.gang.started_at_s,
            outlook.gang.name,
        ),
    )
    victims = _in_order([_option(outlook, snapshot, settings) for outlook in order], need)
    if not victims:
        return None
    names = tuple(sorted(option.name for option in victims))
    return VictimSet(names, sum(option.cost for option in victims), sum(option.gpus for option in victims))


def _option(outlook: Outlook, snapshot: Snapshot, settings: PreemptionSettings) -> Option:
    gang = outlook.gang
    return Option(
        gang.name, expected_loss(outlook, snapshot.now_s, settings), gang.gpus, gang.freed, snapshot.lenders(gang)
    )


def expected_loss(outlook: Outlook, now_s: float, settings: PreemptionSettings) -> int:
    """Milli-GPU-seconds by its statuses; everything since the start of the run where they show no checkpoint."""
    gang, cost = outlook.gang, outlook.cost_at(now_s)
    if cost is not None:
        return cost
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
    """The first options that suffice, without those that turn out unneeded; empty if all together do not suffice."""
    free, slack, victims = dict(need.free), dict(need.slack), list[Option]()
    for option in options:
        if need.met_by(free):
            break
        if all(slack.get(queue, option.gpus) >= option.gpus for queue in option.queues):
            _move(option, free, slack)
            victims.append(option)
    if not need.met_by(free):
        return []
    for option in tuple(victims):
        remaining = dict(free)
        for node, amount in option.on:
            remaining[node] -= amount
        if need.met_by(remaining):
            free = remaining
            victims.remove(option)
    return victims


def _move(option: Option, free: dict[str, int], slack: dict[str, int]) -> None:
    for node, amount in option.on:
        free[node] = free.get(node, 0) + amount
    for queue in option.queues:
        slack[queue] = slack.get(queue, option.gpus) - option.gpus
