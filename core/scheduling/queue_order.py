"""The order of a queue as it stands on Kueue's Workloads: types that are read, decided on and written."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OrderMark:
    """What we noted on a Workload whose ``spec.priority`` says its rank in the order.

    ``priority`` is its own (None: not set), ``written`` what we put there instead. ``class_name``: the priority class
    that it had then; ``formula``: by which weights; ``times``: how often it was written for this class.
    """

    priority: int | None
    written: int
    class_name: str = ""
    formula: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class OrderedWorkload:
    """A Workload, as far as its order matters. ``gpus`` in thousandths, ``created_s`` in Unix seconds.

    ``priority`` is what stands in its spec. ``more_points``: what its class of work counts beside its priority.
    ``may_change``: nobody else has it, and its own mode lets us.
    """

    name: str
    uid: str
    queue: str
    priority: int | None
    class_name: str
    more_points: float
    gpus: int
    created_s: float
    pending: bool
    may_change: bool = True
    mark: OrderMark | None = None

    @property
    def stands(self) -> bool:
        """Whether what we wrote is still there."""
        return self.mark is not None and self.priority == self.mark.written

    @property
    def own_priority(self) -> int | None:
        return self.mark.priority if self.mark is not None and self.stands else self.priority


@dataclass(frozen=True, slots=True)
class OrderRules:
    """A ClusterQueue, as far as it decides whether its order may be written. ``root`` names its cohort tree.

    ``within``, ``reclaim`` and ``borrows`` are those of ``core.scheduling.quota.QueueRules``; ``by_usage``: whoever has
    used less is first, whatever the priority.
    """

    name: str
    cohort: str = ""
    within: str = "Never"
    reclaim: str = "Never"
    borrows: bool = False
    by_usage: bool = False
