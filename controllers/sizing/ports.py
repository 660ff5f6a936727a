"""Interfaces of the sizing controller's parts: the observed cluster, settings, the endpoint, events."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.controllers.sizing.pods import JobPod
from kopt.controllers.sizing.profiles import Learned
from kopt.core.decision import Mode
from kopt.core.workload.executor import Executor
from kopt.policies.sizing.profiling import PartitionOffer, ProfilingSettings
from kopt.policies.sizing.profiling_pod import DryRunSettings

AskEndpoint = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
EmitEvent = Callable[[Object, str, str], None]
"""(Job, reason, sentence): an event for people."""
Complain = Callable[[Object, AnnotationError], None]
"""A Job is handled although something on it cannot be read."""


class Cluster(Protocol):
    """What is known of the cluster now."""

    def job(self, key: Key) -> Object | None: ...

    def namespace(self, name: str) -> NamespaceSettings: ...

    def pods(self, job: Key) -> list[JobPod]: ...

    def learned(self, namespace: str, digest: str) -> Learned | None: ...

    def offers(self, pod: Object) -> tuple[PartitionOffer, ...]:
        """Partitions of the nodes that a pod of this spec may run on."""
        ...

    def executor(self) -> Executor:
        """What hands out shares of a GPU."""
        ...

    async def last_log_lines(self, pod: JobPod) -> bool:
        """Whether the end of a failed pod's log says that memory ran out."""
        ...


class Queueing(Protocol):
    """What Kueue knows of admitted Jobs (``controllers.sizing.queues``)."""

    async def usable_resources(self, namespace: str, queue: str) -> frozenset[str]: ...

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
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""
    gate: Gate = OPEN
    """Of the process: what the feature acts on now."""
