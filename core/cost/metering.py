"""What the meter records: shares of GPUs, held by pods or idle, over time.

At any time the shares on a node sum to its GPUs: whatever no pod is charged for is idle, of one of five kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.core.units import WHOLE_GPU

Milliseconds = int
"""Unix time, or a span."""
MilliGpuMs = int
"""Usage: a GPU for a second is 10⁶."""
GPU_HOUR: MilliGpuMs = WHOLE_GPU * 3_600_000
_IDLE_PREFIX = "idle:"


class Idle(StrEnum):
    """Why nobody is charged. ``RESERVED``: kept for those who tolerate the node's taint. ``UNAVAILABLE``: it is broken,
    or its node is cordoned or not ready. ``STRANDED``: too fragmented for what pods usually ask for (Weng et al., ATC
    2023). ``UNOBSERVED``: no meter ran."""

    UNALLOCATED = "unallocated"
    STRANDED = "stranded"
    RESERVED = "reserved"
    UNAVAILABLE = "unavailable"
    UNOBSERVED = "unobserved"

    @property
    def subject(self) -> str:
        return _IDLE_PREFIX + self.value


def idle_of(subject: str) -> Idle | None:
    """None for a pod's uid."""
    return Idle(subject.removeprefix(_IDLE_PREFIX)) if subject.startswith(_IDLE_PREFIX) else None


class Rule(StrEnum):
    """By which share of a GPU a pod is charged."""

    MAX = "max"
    MEMORY = "memory"
    COMPUTE = "compute"

    @property
    def sentence(self) -> str:
        """For people, beside every invoice."""
        share = {
            Rule.MAX: "the larger of its memory's and its compute's share",
            Rule.MEMORY: "its memory's share",
            Rule.COMPUTE: "its compute's share",
        }[self]
        return (
            f"A pod is charged {share} of each physical GPU, from its binding to its end; where shares of one GPU "
            "exceed it, they are scaled down to it. A partition is charged with the slices that it makes unusable."
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """``count`` GPUs, or parts of one: milli-GPU of memory and of compute of each. ``indices`` are those of its node,
    where they are known; pods of one ``group`` share a GPU."""

    count: int
    memory_milli: int = WHOLE_GPU
    compute_milli: int = WHOLE_GPU
    indices: tuple[int, ...] = ()
    group: str = ""

    def charged(self, rule: Rule) -> int:
        """Milli-GPU of each, 1 to 1,000."""
        share = {
            Rule.MAX: max(self.memory_milli, self.compute_milli),
            Rule.MEMORY: self.memory_milli,
            Rule.COMPUTE: self.compute_milli,
        }[rule]
        return min(max(share, 1), WHOLE_GPU)


@dataclass(frozen=True, slots=True)
class Attributes:
    """To whom a pod is attributed. ``workload`` is KIND/NAME of what made it; ``labels`` are the selected ones, of the
    pod and else of its namespace. ``first_step`` and ``last_step`` are of a training, as its log shows them; -1 where
    nothing is known. ``run`` is the UID of what made the pod, which another of the same name does not have; empty where
    it tells no runs apart, or where nobody recorded it."""

    namespace: str
    pod: str
    workload: str = ""
    queue: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    first_step: int = -1
    last_step: int = -1
    run: str = ""


@dataclass(frozen=True, slots=True)
class MeteredPod:
    """A pod that is bound to a node, and may have ended."""

    uid: str
    node: str
    demand: Demand
    started_ms: Milliseconds
    ended_ms: Milliseconds | None = None
    attributes: Attributes = Attributes("", "")


@dataclass(frozen=True, slots=True)
class Offer:
    """What a price is for: a model of the catalogue, and from whom. ``capacity`` is on-demand, spot or reserved."""

    model: str
    provider: str = ""
    region: str = ""
    capacity: str = "on-demand"


@dataclass(frozen=True, slots=True)
class MeteredNode:
    """``gpus`` are physical ones, however they are cut; ``broken`` of them are offered to nobody. ``closed``: why what
    is free there cannot be had."""

    uid: str
    name: str
    gpus: int
    offer: Offer
    created_ms: Milliseconds = 0
    closed: Idle | None = None
    broken: int = 0

    @property
    def capacity_milli(self) -> int:
        return self.gpus * WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Segment:
    """``subject``, a pod's uid or a kind of idleness, was charged ``milli`` of a node from ``start_ms`` on; without
    ``end_ms`` it still is. Node, subject and start are its key."""

    node_uid: str
    subject: str
    start_ms: Milliseconds
    end_ms: Milliseconds | None
    milli: int
    offer: Offer


@dataclass(frozen=True, slots=True)
class Capacity:
    """A node that had ``milli`` GPUs in all; its uid and start are its key."""

    node_uid: str
    node: str
    start_ms: Milliseconds
    end_ms: Milliseconds | None
    milli: int
    offer: Offer
