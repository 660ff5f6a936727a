"""How what is lent is split among the queues that borrow: together never more than is lent."""

from collections.abc import Sequence
from dataclasses import dataclass

_A_NODE = 8


@dataclass(frozen=True)
class Claim:
    """A queue's GPUs beyond its own: what it uses, and what it would use with what waits in it.

    ``due``: what it has to have so that the one fits for which all others wait, since ``due_s``; 0 where there is none.
    """

    borrowed: int
    wanted: int = 0
    due: int = 0
    due_s: float = 0.0


def shares(lent: int, claims: Sequence[Claim]) -> tuple[int, ...]:
    """GPUs of each, in order.

    Where more is in use than is lent, whoever uses most gives back first, by a node's worth: each queue gives whole
    gangs, so that little taken from many would cost many. Else everybody keeps what is in use; the rest goes first to
    those who have waited too long, then one by one to those who want more and have least; what nobody wants lies with
    the first.
    """
    if sum(one.borrowed for one in claims) > lent:
        return _level([one.borrowed for one in claims], max(0, lent))
    found = [one.borrowed for one in claims]
    for place, one in sorted(enumerate(claims), key=lambda it: it[1].due_s):
        found[place] += max(0, min(one.due - found[place], lent - sum(found)))
    for _ in range(lent - sum(found)):
        short = [place for place, one in enumerate(claims) if one.wanted > found[place]]
        if claims:
            found[min(short, key=lambda place: found[place]) if short else 0] += 1
    return tuple(found)


def _level(used: Sequence[int], lent: int) -> tuple[int, ...]:
    found = list(used)
    while (left := sum(found) - lent) > 0:
        most = max(range(len(found)), key=lambda place: (found[place], -place))
        found[most] -= min(left, _A_NODE, found[most])
    return tuple(found)
