"""Interfaces of the staging controller: the observed cluster, fenced writes, settings."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kopt.cluster.client.resources import Key, Object, Resource
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.controllers.staging.views import (
    DownloadJob,
    DownloadPod,
    QueuedWorkload,
    RequestingWorkload,
    StagingNode,
)
from kopt.core.decision import Mode
from kopt.core.staging.staged_data import Amounts, StagedData
from kopt.policies.staging.pod import PodSettings
from kopt.policies.staging.rules import StagingRules


@dataclass(frozen=True)
class StagingSettings:
    """What the administrator chooses."""

    pods: PodSettings
    mode: Mode = Mode.OBSERVE
    """For workloads and namespaces that say nothing."""
    rules: StagingRules = field(default_factory=StagingRules)
    progress_every_s: float = 2.0
    """Progress is written so often at most."""
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""
    gate: Gate = OPEN
    """Of the process: what the feature acts on now."""


@dataclass(frozen=True)
class DataObject:
    """A StagedData and its object."""

    document: Object
    version: str
    data: StagedData


class Cluster(Protocol):
    """The state observed by informers, with our own writes."""

    def data(self) -> Sequence[DataObject]: ...

    def workloads(self) -> Sequence[RequestingWorkload]: ...

    def jobs(self) -> Sequence[DownloadJob]:
        """Our own."""
        ...

    def pods(self) -> Sequence[DownloadPod]:
        """Of our own Jobs."""
        ...

    def kueue(self) -> Sequence[QueuedWorkload]:
        """Kueue's Workloads."""
        ...

    def nodes(self) -> Sequence[StagingNode]: ...

    def namespace(self, name: str) -> NamespaceSettings: ...

    def noted(self, resource: Resource, document: Object) -> None:
        """Record a write of our own."""
        ...


class Reads(Protocol):
    """Reads on demand (``cluster.client.api.Kube``)."""

    async def get(self, resource: Resource, name: str, namespace: str = "", subresource: str = "") -> Object: ...

    async def list(
        self, resource: Resource, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> "HasItems": ...


class HasItems(Protocol):
    @property
    def items(self) -> list[Object]: ...


class Writes(Protocol):
    """The writes of one term (``cluster.runtime.lease.Fence``)."""

    async def create(self, resource: Resource, body: Object) -> Object: ...

    async def patch(self, resource: Resource, document: Object, changes: Object) -> Object: ...

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object: ...

    async def delete(self, resource: Resource, document: Object) -> None: ...


class Progresses(Protocol):
    """The progress that running pods report."""

    def follow(self, pods: Iterable[DownloadPod]) -> None: ...

    def amounts(self, pod_uid: str) -> Amounts | None: ...


class Silent:
    """No progress is followed."""

    def follow(self, pods: Iterable[DownloadPod]) -> None:
        pass

    def amounts(self, pod_uid: str) -> Amounts | None:
        return None


def keys_of(workload: RequestingWorkload) -> Collection[Key]:
    """The StagedData that a workload names."""
    return [(workload.key[0], name) for name in workload.request.all_names]
