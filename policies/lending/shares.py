"""Splits the lent GPUs among the borrowing queues: the shares never add up to more than is lent."""

from collections.abc import Sequence
from dataclasses import dataclass

_A_NODE = 8


@dataclass(frozen=True)
class Claim:
    """A queue's GPUs beyond its own quota: what it uses, and what it would use with its pending workloads.

    ``due``: what it needs so that the workload fits that must not be overtaken since ``due_s``; 0 if there is none.
    """

    borrowed: int
    wanted: int = 0
    due: int = 0
    due_s: float = 0.0


def shares(lent: int, claims: Sequence[Claim]) -> tuple[int, ...]:
    """GPUs of each claim, in order.

    If more is in use than is lent, the largest borrowers give back first, in units of a node: queues give back whole
    gangs, so taking a little from many queues would stop many gangs. Otherwise every queue keeps what it uses. The rest
    goes first to overdue workloads, then one by one to the queues that want more and have least; what no queue wants
    goes to the first.
    """
    if sum(claim.borrowed for claim in claims) > lent:
        return _level([claim.borrowed for claim in claims], max(0, lent))
    result = [claim.borrowed for claim in claims]
    for index, claim in sorted(enumerate(claims), key=lambda it: it[1].due_s):
        result[index] += max(0, min(claim.due - result[index], lent - sum(result)))
    for _ in range(lent - sum(result)):
        short = [index for index, claim in enumerate(claims) if claim.wanted > result[index]]
        if claims:
            result[min(short, key=lambda index: result[index]) if short else 0] += 1
    return tuple(result)


def _level(used: Sequence[int], lent: int) -> tuple[int, ...]:
    result = list(used)
    while (excess := sum(result) - lent) > 0:
        most = max(range(len(result)), key=lambda index: (result[index], -index))
        result[most] -= min(excess, _A_NODE, result[most])
    return tuple(result)
