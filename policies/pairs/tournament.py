"""Who is measured against whom next: a round-robin tournament in which nobody plays twice at a time.

The circle method (Kirkman, 1847): one node stays, the others walk round it; every round is a perfect matching, and
after all rounds each has met each. Played in that order, with the pair that was measured longest ago first, nodes may
come, go and be busy at any time.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from kopt.core.pairs import Pair


def pair_of(one: str, other: str) -> Pair:
    return (one, other) if one < other else (other, one)


def rounds(nodes: Collection[str]) -> Iterator[list[Pair]]:
    """Every pair of the nodes once, in rounds in which no node occurs twice. With an odd number one rests in each."""
    seats: list[str | None] = sorted(nodes)  # type: ignore[assignment]
    if len(seats) % 2:
        seats.append(None)
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [pair_of(one, other) for one, other in facing if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def pairs_to_measure(nodes: Collection[str], most_partners: int = 0) -> list[Pair]:
    """All pairs in the order of their rounds; ``most_partners`` above 0 leaves it at so many rounds."""
    found: list[Pair] = []
    for number, games in enumerate(rounds(nodes)):
        if most_partners and number == most_partners:
            break
        found += games
    return found


def next_pairs(
    pairs: Sequence[Pair], due_at_s: Mapping[Pair, float], now_s: float, *, busy: Collection[str] = (), at_most: int = 1
) -> list[Pair]:
    """Pairs to start now, the longest due first, no node in two of them nor among ``busy``.

    ``due_at_s`` has the time from which a pair is to be measured again; a pair without one never was, and comes first,
    in the order of ``pairs``.
    """
    known = due_at_s.keys()
    again = sorted((due_at_s[one], n) for n, one in enumerate(pairs) if one in known and due_at_s[one] <= now_s)
    taken = set(busy)
    found: list[Pair] = []
    for one in (*(one for one in pairs if one not in known), *(pairs[n] for _, n in again)):
        if len(found) >= at_most:
            break
        if taken.isdisjoint(one):
            taken.update(one)
            found.append(one)
    return found
