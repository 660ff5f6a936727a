"""Arrivals at a given load, by the protocol of the paper that published the openb trace (Weng et al., ATC 2023).

Pods sorted by name and shuffled once; uniform copies appended until the next one would pass the load, or, where the
trace asks for more than that already, random pods removed. CPU-only pods take part in all of it.
"""

import random
from collections.abc import Iterable, Sequence

from kopt.core.scheduling.cluster import Node
from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import WHOLE_GPU
from kopt.data.jobs.openb import TracePod


def capacity_milli(nodes: Iterable[Node]) -> int:
    """Milli-GPU of all nodes."""
    return sum(len(node.gpus) for node in nodes) * WHOLE_GPU


def arrivals(pods: Sequence[TracePod], capacity: int, load: float, seed: int) -> list[PodRequest]:
    """Requests in the order they arrive; together they ask for at most ``load`` times ``capacity`` milli-GPU.

    Raises ValueError for a load that is not positive and for a trace without GPU pods.
    """
    if not load > 0 or not any(pod.request.gpus.count for pod in pods):
        raise ValueError(f"a load of {load:g} needs GPU pods to make it")
    chance = random.Random(seed)
    listed = [pod.request for pod in sorted(pods, key=lambda pod: pod.name)]
    chance.shuffle(listed)
    wanted = load * capacity
    total = int(sum(request.gpus.total for request in listed))
    originals = tuple(listed)
    while total <= wanted:
        copy = chance.choice(originals)
        if total + copy.gpus.total > wanted:
            break
        listed.append(copy)
        total += copy.gpus.total
    while total > wanted:
        total -= listed.pop(chance.randrange(len(listed))).gpus.total
    return listed
