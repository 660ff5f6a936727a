"""What informers have seen, and what is said of strategies and their nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopt.cluster.client.resources import Object
from kopt.cluster.workloads.requests.devices import PublishedSlice
from kopt.controllers.partitions.dcm import NodeOrder
from kopt.controllers.partitions.demand import PartitionClaim
from kopt.controllers.partitions.executors import Executor
from kopt.controllers.partitions.views import (
    ObservedConfigurations,
    ObservedNode,
    ObservedPlan,
    ObservedPod,
    ObservedProfiles,
    ObservedStrategy,
    ReportedModes,
)
from kopt.policies.partitions.configurations import NodeOption


@dataclass(frozen=True)
class Observed:
    """Everything that informers have seen. ``classes``: DeviceClasses by name. ``profiles``: of AMD's device config
    manager; ``reported``: what node executors of ours read from amd-smi."""

    now_s: float
    strategies: Sequence[ObservedStrategy]
    nodes: Sequence[ObservedNode]
    pods: Sequence[ObservedPod]
    claims: Sequence[PartitionClaim]
    classes: Mapping[str, Object]
    slices: Sequence[PublishedSlice]
    plans: Sequence[ObservedPlan]
    configurations: ObservedConfigurations
    profiles: ObservedProfiles = field(default_factory=ObservedProfiles)
    reported: Sequence[ReportedModes] = ()


@dataclass
class NodeReport:
    """A node of a strategy. ``wanted``: what it is to be cut as, None to stay; ``reason`` in one word why nothing is
    done, or what is. ``order``: with AMD's manager, how it is emptied and made as before."""

    node: ObservedNode
    executor: Executor | None
    actual: Mapping[str, int]
    reason: str
    message: str = ""
    wanted: NodeOption | None = None
    is_idle: bool = False
    order: NodeOrder | None = None


@dataclass(frozen=True)
class Undone:
    """What is asked for and not done, and why."""

    subject: str
    reason: str
    message: str


@dataclass
class StrategyReport:
    """``pending`` and ``served``: requests by profile."""

    strategy: ObservedStrategy
    nodes: list[NodeReport] = field(default_factory=list)
    pending: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    undone: list[Undone] = field(default_factory=list)
