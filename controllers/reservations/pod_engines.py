"""KAI and Volcano, which have no objects that can be kept from starting: the books of a reservation by their queues and
pods.

Their queues become what ``snapshot`` reads of Kueue's: a pool by the node pool that a queue is of, and a quota that
cannot be borrowed beyond, as these engines take back the quota of a queue and nothing else.
Sources: KAI-Scheduler 0.12 (scheduling.run.ai/v2 Queue), Volcano 1.12 (scheduling.volcano.sh/v1beta1 Queue).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kopt.cluster.client.resources import KAI_QUEUES, VOLCANO_QUEUES, Object, Resource
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.workloads.frameworks import QUEUE_REFERENCES, QueueReference
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor
from kopt.cluster.workloads.kueue.reading import amount
from kopt.core.scheduling.queue_tree import DEFAULT_POOL, UNLIMITED, Engine
from kopt.core.scheduling.quota import Quota
from kopt.core.scheduling.submission import Framework

NODE_POOL_LABEL = "kai.scheduler/node-pool"
_UNBOUNDED = 10**15


@dataclass(frozen=True)
class PodEngine:
    """An engine that goes by pods. ``reference``: where these name their queue."""

    engine: Engine
    queues: Resource
    scheduler: str
    reference: QueueReference

    def queue_of(self, metadata: Mapping[str, Any]) -> str:
        return text(metadata, self.reference.section, self.reference.key)


POD_ENGINES: Mapping[Engine, PodEngine] = MappingProxyType(
    {
        Engine.KAI: PodEngine(Engine.KAI, KAI_QUEUES, "kai-scheduler", QUEUE_REFERENCES[Framework.KAI]),
        Engine.VOLCANO: PodEngine(Engine.VOLCANO, VOLCANO_QUEUES, "volcano", QUEUE_REFERENCES[Framework.VOLCANO]),
    }
)


@dataclass(frozen=True)
class PodQueue:
    """A queue that pods can name, with its node pool."""

    queue: ClusterQueue
    pool: str

    @property
    def flavor(self) -> Flavor:
        return Flavor(self.pool, {} if self.pool == DEFAULT_POOL else {NODE_POOL_LABEL: self.pool})


def read_queue(document: Object, engine: Engine, gpu_resource: str) -> PodQueue | None:
    """None for a queue that takes no jobs: KAI schedules nothing in one without a parent."""
    spec, name = mapping(document, "spec"), text(document, "metadata", "name")
    if engine is Engine.KAI:
        if not text(spec, "parentQueue"):
            return None
        pool = text(document, "metadata", "labels", NODE_POOL_LABEL) or DEFAULT_POOL
        row = mapping(spec, "resources", "gpu")
        quota, limit = (_thousandths(row.get(key, 0)) for key in ("quota", "limit"))
    else:
        pool = DEFAULT_POOL
        quota = _amount(spec, "deserved", gpu_resource)
        limit = _amount(spec, "capability", gpu_resource)
        # A queue that deserves nothing in so many words shares by weight, which is nothing to reserve by.
        quota = 0 if quota == UNLIMITED else quota
    usable = min((bound for bound in (quota, limit) if bound != UNLIMITED), default=_UNBOUNDED)
    return PodQueue(ClusterQueue(name, {(pool, gpu_resource): Quota(usable)}, active=True), pool)


def flavors_of(queues: Iterable[PodQueue]) -> dict[str, Flavor]:
    """By name of the node pool."""
    return {each.pool: each.flavor for each in queues}


def _amount(spec: Mapping[str, Any], field: str, resource: str) -> int:
    amounts = mapping(spec, field)
    return amount(amounts[resource]) if resource in amounts else UNLIMITED


def _thousandths(gpus: Any) -> int:
    if isinstance(gpus, bool) or not isinstance(gpus, int | float):
        return 0
    return UNLIMITED if gpus < 0 else round(gpus * 1000)
