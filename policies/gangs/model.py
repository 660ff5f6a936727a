"""The snapshot that decisions about gangs are made from. Amounts are integers, times seconds of any clock."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kopt.core.reason import Reason

Amounts = Mapping[str, int]
"""By resource."""


@dataclass(frozen=True)
class GangPod:
    """A pod of a gang. ``node`` is empty until it is bound, ``bound_s`` since when it is. ``refused``: a scheduler
    found no room for it."""

    name: str
    requests: Amounts
    node: str = ""
    bound_s: float = 0.0
    refused: bool = False


@dataclass(frozen=True)
class Gang:
    """Pods of which at least ``minimum`` have to run at once for any of them to be of use.

    ``nodes``: those that its pods may run on. ``loss_gpu_s``: work in GPU-seconds that stopping it now would lose;
    None where nothing is reported, which counts as everything since its pods were bound. ``spared``: why it may not be
    stopped, None where it may. Raises ValueError for a minimum that cannot be.
    """

    name: str
    pods: tuple[GangPod, ...]
    minimum: int
    nodes: frozenset[str]
    priority: int = 0
    created_s: float = 0.0
    loss_gpu_s: float | None = None
    spared: Reason | None = None

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ValueError(f"gang {self.name!r} with a minimum of {self.minimum} pods")

    @cached_property
    def bound(self) -> tuple[GangPod, ...]:
        return tuple(pod for pod in self.pods if pod.node)

    @cached_property
    def open(self) -> tuple[GangPod, ...]:
        """Pods without a node, those that need most first."""
        pods = (pod for pod in self.pods if not pod.node)
        return tuple(sorted(pods, key=lambda pod: (-max(pod.requests.values(), default=0), pod.name)))

    @property
    def missing(self) -> int:
        """Pods that it lacks to its minimum."""
        return max(0, self.minimum - len(self.bound))

    @property
    def is_half_placed(self) -> bool:
        """It holds nodes and does not reach its minimum, as a scheduler found no room for the rest."""
        has_rest = len(self.open) >= self.missing
        return 0 < len(self.bound) < self.minimum and has_rest and any(pod.refused for pod in self.open)

    @cached_property
    def since_s(self) -> float:
        """When it made its last progress: its newest pod was bound."""
        return max((pod.bound_s for pod in self.bound), default=math.inf)

    def held(self) -> dict[str, dict[str, int]]:
        """What its bound pods hold, by node and resource."""
        return held_by(self.bound)


@dataclass(frozen=True)
class GangSnapshot:
    """All gangs at one time. ``free``: what is free on each node, what is terminating included."""

    gangs: tuple[Gang, ...]
    free: Mapping[str, Amounts]
    now_s: float
    gpus: frozenset[str] = field(default_factory=lambda: frozenset({"gpu"}))
    """Resources that are GPUs, in thousandths: losses are counted in these."""
    kept_whole: frozenset[str] = frozenset()
    """Gangs whose pods beyond the minimum were evicted lately: their replacements may have taken the room."""

    def __post_init__(self) -> None:
        if len({gang.name for gang in self.gangs}) < len(self.gangs):
            raise ValueError("two gangs have one name")


@dataclass(frozen=True)
class GangSettings:
    """``hold_s``: so long a half-placed gang may hold its nodes, counted from its last progress."""

    hold_s: float = 300.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.hold_s) and self.hold_s >= 0):
            raise ValueError(f"a hold of {self.hold_s:g} s")


def held_by(pods: tuple[GangPod, ...]) -> dict[str, dict[str, int]]:
    """What pods hold, by node and resource."""
    result: dict[str, dict[str, int]] = {}
    for pod in pods:
        amounts = result.setdefault(pod.node, {})
        for name, amount in pod.requests.items():
            amounts[name] = amounts.get(name, 0) + amount
    return result


def loss_of(gang: Gang, snapshot: GangSnapshot, pods: tuple[GangPod, ...] | None = None) -> float:
    """GPU-seconds that stopping a gang, or some of its bound pods, would lose at most."""
    lost_pods = gang.bound if pods is None else pods
    since = sum(gpus_of(pod, snapshot) * max(0.0, snapshot.now_s - pod.bound_s) for pod in lost_pods)
    if gang.loss_gpu_s is None:
        return since
    every = sum(gpus_of(pod, snapshot) for pod in gang.bound)
    own = sum(gpus_of(pod, snapshot) for pod in lost_pods)
    return min(since, gang.loss_gpu_s * own / every) if every else since


def gpus_of(pod: GangPod, snapshot: GangSnapshot) -> float:
    return sum(amount for name, amount in pod.requests.items() if name in snapshot.gpus) / 1000
