"""Kueue's Workloads and queues, pods and evictions, as far as they matter here.

Amounts are thousandths of a resource's unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.workloads.pod_request import is_gpu

HOLDER = "preemption"
"""The value of kaiwo.ai/held on Workloads that wait for a decision, and on those whose priority we have raised."""
DECISION_ANNOTATION = "kaiwo.ai/preemption"
EVICTING_ANNOTATION = "kaiwo.ai/evicting"
MINE = "kopt-preemption"


@dataclass(frozen=True)
class Cover:
    """A raised priority: what it was (None: not set), what it is, for which workload and until when. ``stands``: nobody
    has written another one since."""

    priority: int | None
    raised: int
    for_uid: str
    until_s: float
    stands: bool = True


@dataclass(frozen=True)
class Evicting:
    """We told a workload to make room: for whom (namespace/name) and when. ``pods``: how many a plain gang had."""

    at_s: float
    waiting: str
    pods: int = 0


@dataclass(frozen=True)
class Verdict:
    """What was decided about a waiting Workload, as it stands on it. ``until_s``: covers hold so long."""

    word: str
    until_s: float = 0.0
    victims: tuple[str, ...] = ()
    at_s: float = 0.0


@dataclass(frozen=True)
class WorkloadView:
    """A Workload of Kueue's. ``priority`` is its own also while we have raised it; ``asks`` and ``uses`` are totals."""

    document: Object = field(compare=False, repr=False)
    version: str
    key: Key
    uid: str
    owner_uid: str
    priority: int
    queue: str
    cluster_queue: str
    asks: Mapping[str, int]
    uses: Mapping[tuple[str, str], int]
    created_s: float
    reserved_s: float | None
    evicted_at_s: float | None
    finished: bool
    active: bool
    holder: str
    mode: str = ""
    cover: Cover | None = None
    evicting: Evicting | None = None
    verdict: Verdict | None = None
    let_go_s: float | None = None
    """When others let it go to its queue, and we held it then."""
    mirrored: bool = False
    """MultiKueue has it in two clusters, and deletes the remote job when the specs of the two differ."""

    @property
    def name(self) -> str:
        return "/".join(self.key)

    @property
    def came_s(self) -> float:
        """Since when its queue could have made room for it."""
        return self.created_s if self.let_go_s is None else self.let_go_s

    @property
    def held(self) -> bool:
        """It waits for our decision."""
        return self.holder == HOLDER and self.cover is None and not self.active

    def is_covered_from(self, waiting: "WorkloadView") -> bool:
        """Kueue cannot take it for one that waits."""
        cover = self.cover
        return cover is not None and cover.for_uid == waiting.uid and cover.stands and cover.raised > waiting.priority

    @property
    def pending(self) -> bool:
        return self.reserved_s is None and not self.finished

    @property
    def running(self) -> bool:
        """It has quota, and was not told to give it back."""
        return self.reserved_s is not None and not self.finished and self.evicted_at_s is None and self.active

    @property
    def leaving(self) -> bool:
        """It was told to give its quota back, and its pods have not ended yet."""
        return self.reserved_s is not None and not self.finished and self.evicted_at_s is not None

    @property
    def gpu_resource(self) -> str:
        """The one GPU resource that it asks for; empty where there is none, or several."""
        result = [name for name, amount in self.asks.items() if amount and is_gpu(name)]
        return result[0] if len(result) == 1 else ""


@dataclass(frozen=True)
class ClusterQueueView:
    """``quota``: nominal, by flavour and resource, as the groups list them; ``preempts``: withinClusterQueue."""

    name: str
    quota: Mapping[tuple[str, str], int]
    preempts: str
    cohort: str
    active: bool

    @property
    def resources(self) -> frozenset[str]:
        return frozenset(resource for _, resource in self.quota)

    def flavors(self, resource: str) -> list[str]:
        return [flavor for flavor, name in self.quota if name == resource]


@dataclass(frozen=True)
class PodView:
    """A pod that lives: by which Workload or owner it is found, its GPUs, and what its annotations say."""

    key: Key
    uid: str
    workload: str
    owner_uid: str
    gpus: int
    notes: Mapping[str, str]
    version: str = field(default="", compare=False)
    started_s: float | None = None


@dataclass(frozen=True)
class EvictionView:
    """One eviction, by anyone."""

    uid: str
    at_s: float
