"""Which downloads start next: fair sharing of slots between namespaces.

The next slot goes to the namespace with the fewest running downloads; among several, to the one that was served longest
ago; within it, to the download that has waited longest. No namespace gets all slots if there is more than one, so that
a later namespace does not have to wait for all downloads of another.

>>> wishes = [Wish("a", f"{n}", 0.0) for n in range(5)] + [Wish("b", "0", 9.0)]
>>> chosen, turns = share(wishes, {"a": 1}, Turns(), at_once=3, per_namespace=2)
>>> [(one.namespace, one.location) for one in chosen]
[('b', '0'), ('a', '0')]
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wish:
    """A download that could start: its namespace, its copy, and since when it waits (Unix seconds)."""

    namespace: str
    location: str
    since_s: float


@dataclass(frozen=True)
class Turns:
    """By namespace: the number of the slot that it got last."""

    last: Mapping[str, int] = field(default_factory=dict)
    slots: int = 0


def share(
    wishes: Iterable[Wish], running: Mapping[str, int], turns: Turns, *, at_once: int, per_namespace: int
) -> tuple[tuple[Wish, ...], Turns]:
    """The downloads to start, in order, and the turns after that. ``running``: running downloads by namespace."""
    queues: dict[str, deque[Wish]] = defaultdict(deque)
    for wish in sorted(wishes, key=lambda item: (item.since_s, item.location)):
        queues[wish.namespace].append(wish)
    counts, last, slots = Counter(running), dict(turns.last), turns.slots
    begun: list[Wish] = []
    for _ in range(at_once - sum(running.values())):
        open_to = [name for name, queue in queues.items() if queue and counts[name] < per_namespace]
        if not open_to:
            break
        name = min(open_to, key=lambda item: (counts[item], last.get(item, 0), queues[item][0].since_s, item))
        begun.append(queues[name].popleft())
        counts[name] += 1
        slots += 1
        last[name] = slots
    recent = {name: number for name, number in last.items() if name in queues or running.get(name)}
    return tuple(begun), Turns(recent, slots)
