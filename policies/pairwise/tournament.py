"""Which pairs to measure next: a round-robin tournament in which no node is in two tests at a time.

The circle method (Kirkman, 1847): one node is fixed, the others rotate; every round is a perfect matching, and after
all rounds every pair has met. Pairs are measured in that order, the longest ago first, so nodes may join, leave and be
busy at any time.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from kopt.core.hardware.pairwise import Pair


def pair_of(name: str, other: str) -> Pair:
    return (name, other) if name < other else (other, name)


def rounds(nodes: Collection[str]) -> Iterator[list[Pair]]:
    """Every pair of nodes once, in rounds without a repeated node. An odd number leaves one node idle per round."""
    seats: list[str | None] = sorted(nodes)  # type: ignore[assignment]
    if len(seats) % 2:
        seats.append(None)
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [pair_of(name, other) for name, other in facing if name is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def pairs_to_measure(nodes: Collection[str], most_partners: int = 0) -> list[Pair]:
    """All pairs in the order of their rounds; ``most_partners`` above 0 limits the number of rounds."""
    result: list[Pair] = []
    for number, games in enumerate(rounds(nodes)):
        if most_partners and number == most_partners:
            break
        result += games
    return result


def next_pairs(
    pairs: Sequence[Pair], due_at_s: Mapping[Pair, float], now_s: float, *, busy: Collection[str] = (), at_most: int = 1
) -> list[Pair]:
    """Pairs to start now, the longest overdue first; no node is in two of them or in ``busy``.

    ``due_at_s`` is the time from which a pair is to be measured again; pairs without one were never measured and come
    first, in the order of ``pairs``.
    """
    measured = due_at_s.keys()
    again = sorted((due_at_s[item], n) for n, item in enumerate(pairs) if item in measured and due_at_s[item] <= now_s)
    occupied = set(busy)
    result: list[Pair] = []
    for item in (*(pair for pair in pairs if pair not in measured), *(pairs[n] for _, n in again)):
        if len(result) >= at_most:
            break
        if occupied.isdisjoint(item):
            occupied.update(item)
            result.append(item)
    return result
