"""The same situation when some of what runs has ended."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from kopt.core.scheduling.diagnosis import Binding
from kopt.policies.diagnosis.situation import Ceiling, PodShape, RunningWorkload, Situation
from kopt.policies.placement.state import PlacementError, release


@contextmanager
def ended(situation: Situation, names: Collection[str]) -> Iterator[Situation]:
    """The situation without the running workloads of these names: their nodes, quota and share of limits are free.

    Quota is given back in the tree itself, and used again when the context ends.
    """
    terminated = [workload for workload in situation.running if workload.name in names]
    fleet = situation.fleet.copy() if situation.fleet is not None else None
    for workload in terminated:
        for row, slots, request in workload.slots:
            if fleet is None:
                break
            try:
                release(fleet, row, slots, request)
            except PlacementError:
                # More is in use there than there is: the node has shrunk.
                continue
    shapes = tuple(_with_pods(shape, terminated) for shape in situation.shapes)
    ceilings = tuple(_with_gpus(ceiling, terminated) for ceiling in situation.ceilings)
    kueue = situation.kueue
    returned = [] if kueue is None else [item for item in kueue.admitted if item.name in names]
    if kueue is not None:
        for item in returned:
            kueue.tree.add(item.queue, item.uses, -1)
        kueue = replace(kueue, admitted=[item for item in kueue.admitted if item.name not in names])
    try:
        yield replace(situation, shapes=shapes, fleet=fleet, ceilings=ceilings, kueue=kueue)
    finally:
        if kueue is not None:
            for item in returned:
                kueue.tree.add(item.queue, item.uses)


def _with_gpus(ceiling: Ceiling, terminated: Sequence[RunningWorkload]) -> Ceiling:
    """With what they counted against it: to a quota only what cannot be preempted does."""
    returned = sum(
        workload.milli_gpus
        for workload in terminated
        if ceiling.queue in workload.queues and (ceiling.code is Binding.QUEUE_LIMIT or not workload.preemptible)
    )
    return replace(ceiling, used=ceiling.used - returned)


def _with_pods(shape: PodShape, terminated: Sequence[RunningWorkload]) -> PodShape:
    """With the pods that nodes can take more; of further resources what they held is not known."""
    limits = []
    for limit in shape.limits:
        if limit.resource == "pods":
            free = limit.free.copy()
            np.add.at(free, [row for workload in terminated for row, _, _ in workload.slots], 1)
            limit = replace(limit, free=free)
        limits.append(limit)
    return replace(shape, limits=tuple(limits))
