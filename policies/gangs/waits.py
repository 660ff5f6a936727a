"""Who waits for whom: a gang waits for another if its missing pods lack room, and the other holds some of it.

The strongly connected components of this graph are deadlocks: none of their gangs can start before another of them
gives up what it holds (Holt, Some deadlock properties of computer systems, 1972).
"""

from collections.abc import Iterable, Mapping, Sequence

from kopt.policies.gangs.model import Amounts, Gang, GangPod, GangSnapshot, held_by

Room = Mapping[str, Amounts]


def fits(gang: Gang, free: Room) -> bool:
    """Whether as many of its open pods find room as it lacks to its minimum."""
    return placed_count(gang, free, gang.missing) >= gang.missing


def placed_count(gang: Gang, free: Room, most: int) -> int:
    """How many of its open pods find room together, up to ``most``."""
    return len(placement(gang, free, most))


def placement(gang: Gang, free: Room, most: int) -> dict[str, str]:
    """A node for each of its open pods that finds room, up to ``most``: the one with the least left that has it.

    Pods are alike in nearly all gangs; where they are, as many as possible are placed, else it may be fewer.
    """
    remaining = {node: dict(free[node]) for node in sorted(gang.nodes) if node in free}
    result: dict[str, str] = {}
    for pod in _smallest(gang.open, most):
        node = _tightest(pod, remaining)
        if node is None:
            continue
        for name, amount in pod.requests.items():
            remaining[node][name] = remaining[node].get(name, 0) - amount
        result[pod.name] = node
    return result


def with_freed(free: Room, pods: Iterable[GangPod]) -> dict[str, dict[str, int]]:
    """The room once ``pods`` are gone."""
    result = {node: dict(amounts) for node, amounts in free.items()}
    for node, amounts in held_by(tuple(pods)).items():
        for name, amount in amounts.items():
            if node in result:
                result[node][name] = result[node].get(name, 0) + amount
    return result


def waits_for(gangs: Sequence[Gang], snapshot: GangSnapshot) -> dict[str, set[str]]:
    """For each of ``gangs`` the names of those among them that it waits for: more of its pods would fit without."""
    result: dict[str, set[str]] = {}
    for gang in gangs:
        result[gang.name] = set()
        before = placed_count(gang, snapshot.free, gang.missing)
        if before >= gang.missing:
            continue
        for other in gangs:
            if other is gang or not any(pod.node in gang.nodes for pod in other.bound):
                continue
            if placed_count(gang, with_freed(snapshot.free, other.bound), gang.missing) > before:
                result[gang.name].add(other.name)
    return result


def deadlocks(gangs: Sequence[Gang], snapshot: GangSnapshot) -> list[tuple[Gang, ...]]:
    """Sets of gangs that wait for each other in a cycle, each gang in one set at most; gangs by name."""
    edges = waits_for(gangs, snapshot)
    by_name = {gang.name: gang for gang in gangs}
    components = [names for names in _components(edges) if len(names) > 1]
    return [tuple(by_name[name] for name in sorted(names)) for names in sorted(components, key=sorted)]


def _components(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected components (Kosaraju), without recursion."""
    order: list[str] = []
    visited: set[str] = set()
    for start in sorted(edges):
        stack = [(start, iter(sorted(edges[start])))] if start not in visited else []
        visited.add(start)
        while stack:
            name, rest = stack[-1]
            following = next((other for other in rest if other not in visited), None)
            if following is None:
                order.append(name)
                stack.pop()
            else:
                visited.add(following)
                stack.append((following, iter(sorted(edges[following]))))
    backwards: dict[str, set[str]] = {name: set() for name in edges}
    for name, others in edges.items():
        for other in others:
            backwards[other].add(name)
    result: list[set[str]] = []
    assigned: set[str] = set()
    for name in reversed(order):
        if name in assigned:
            continue
        component, pending = set[str](), [name]
        while pending:
            current = pending.pop()
            if current not in assigned:
                assigned.add(current)
                component.add(current)
                pending += backwards[current] - assigned
        result.append(component)
    return result


def _smallest(pods: Sequence[GangPod], most: int) -> list[GangPod]:
    """As many pods as are missing, the ones that need least, in the order of ``pods``."""
    indexes = set(sorted(range(len(pods)), key=lambda index: (_size(pods[index]), -index))[:most])
    return [pod for index, pod in enumerate(pods) if index in indexes]


def _size(pod: GangPod) -> int:
    return max(pod.requests.values(), default=0)


def _tightest(pod: GangPod, remaining: Mapping[str, Amounts]) -> str | None:
    best: tuple[int, str] | None = None
    for node, amounts in remaining.items():
        if all(amounts.get(name, 0) >= amount for name, amount in pod.requests.items() if amount):
            key = sum(amounts.get(name, 0) for name in pod.requests), node
            best = key if best is None or key < best else best
    return None if best is None else best[1]
