"""What the parts of the sizing controller are given: the cluster as it is seen, settings, whom to ask and to tell."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kopt.cluster.lease import Fence
from kopt.cluster.namespaces import NamespaceView
from kopt.cluster.resources import Key, Object
from kopt.controllers.sizing.pods import PodView
from kopt.controllers.sizing.profiles import Learned
from kopt.core.decision import Mode
from kopt.policies.profiling import PartitionOffer, ProfilingSettings
from kopt.policies.profiling_pod import DryRunSettings

AskEndpoint = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
Tell = Callable[[Object, str, str], None]
"""(Job, reason, sentence): an event for people."""


class Cluster(Protocol):
    """What is known of the cluster now."""

    def job(self, key: Key) -> Object | None: ...

    def namespace(self, name: str) -> NamespaceView: ...

    def pods(self, job: Key) -> list[PodView]: ...

    def learned(self, namespace: str, digest: str) -> Learned | None: ...

    def offers(self, pod: Object) -> tuple[PartitionOffer, ...]:
        """Partitions of the nodes that a pod of this spec may run on."""
        ...

    async def last_words(self, pod: PodView) -> bool:
        """Whether the end of a failed pod's log says that memory ran out."""
        ...


class Queueing(Protocol):
    """What Kueue knows of admitted Jobs (``controllers.sizing.queues``)."""

    async def covered(self, namespace: str, queue: str) -> frozenset[str]: ...

    async def stop(self, fence: Fence, job: Object) -> bool: ...

    async def stopping(self, job: Object) -> bool: ...

    async def resume(self, fence: Fence, job: Object) -> None: ...


@dataclass(frozen=True)
class SizingSettings:
    """What the administrator chooses."""

    dry_run: DryRunSettings
    profiling: ProfilingSettings = dataclasses.field(default_factory=ProfilingSettings)
    mode: Mode = Mode.OBSERVE
    """For namespaces and jobs that say nothing themselves."""
