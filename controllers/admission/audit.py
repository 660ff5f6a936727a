"""Which GPU workloads bypass the queues already, and the patch that would bring each under one.

Webhooks see new objects only. In: the objects of every kind of the table that the cluster serves. Out: findings, and
the metric ``kopt_rogue_gpus``.
"""

import asyncio
import contextlib
import copy
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily

from kopt.cluster.client.api import ApiError, Forbidden, Kube, NotFound
from kopt.cluster.client.resources import PODS, UNFINISHED_PODS, Object, Resource
from kopt.cluster.objects.fields import at
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.runtime.informer import Informer, identity
from kopt.cluster.workloads.frameworks import QUEUE_REFERENCES, write_queue, written_queue
from kopt.cluster.workloads.kinds import WorkloadKind
from kopt.cluster.workloads.requests.external import (
    CLAIMS,
    ELSEWHERE,
    ObjectRef,
    complete,
    completed,
    is_generated,
    read_object,
    stands_elsewhere,
)
from kopt.cluster.workloads.served import alive, is_evaluated, metadata_and_spec, served_kinds
from kopt.cluster.workloads.workload import NamespaceDefaults, Workload
from kopt.controllers.admission.evaluation import ClusterState, evaluate
from kopt.core.scheduling.submission import Framework
from kopt.core.units import MilliGpu

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_PLACEHOLDER = "QUEUE"


@dataclass(frozen=True)
class Finding:
    """A workload without a queue. ``queue`` is the one that the rules name for it, empty when none does."""

    resource: Resource
    namespace: str
    name: str
    gpus: MilliGpu
    opted_out: bool
    queue: str
    reason: str
    patch: tuple[Mapping[str, Any], ...]
    """RFC 6902, to be applied with ``kubectl patch --type json``."""

    @property
    def command(self) -> str:
        """The kubectl line that applies the patch. A running Job is stopped by Kueue and queued anew."""
        kind = f"{self.resource.plural}.{self.resource.group}".rstrip(".")
        patch = json.dumps(list(self.patch), separators=(",", ":"))
        return f"kubectl -n {self.namespace} patch {kind} {self.name} --type json -p '{patch}'"


async def audit(kube: Kube, cluster: ClusterState, namespace: str = "") -> AsyncIterator[Finding]:
    """Everything that bypasses the queues now, kind by kind; kinds that are not served or not readable are left out."""
    objects: dict[ObjectRef, Object | None] = {}

    async def read(location: ObjectRef) -> Object | None:
        if location not in objects:
            objects[location] = await read_object(kube, location)
        return objects[location]

    for kind, resource in await served_kinds(kube):
        try:
            async for page in kube.pages(resource, namespace):
                for document in page.items:
                    workload = alive(document, kind)
                    if workload is None or _has_queue(workload, cluster):
                        continue
                    if (finding := _find(await completed(workload, cluster.find, read), cluster)) is not None:
                        yield finding
        except (NotFound, Forbidden):
            continue


class AuditWatch:
    """The same, kept up to date by watches; a Prometheus collector of ``kopt_rogue_gpus``.

    Only objects without a queue are kept, so that memory follows what is wrong and not the size of the cluster. Every
    ``rescan_s`` seconds kinds that the cluster has been given are begun with, and kinds that are gone left.
    """

    def __init__(self, kube: Kube, cluster: ClusterState, rescan_s: float = 30.0) -> None:
        self._kube, self._cluster, self._rescan_s = kube, cluster, rescan_s
        self._kinds: dict[Resource, _Followed[Workload]] = {}
        self._others: dict[Resource, _Followed[Object]] = {}
        self._framework: Framework | None = None
        self._restart = asyncio.Event()

    async def run(self) -> None:
        """Watch the kinds that are served until cancelled."""
        try:
            while True:
                self._restart.clear()
                # What is kept depends on the framework, so another framework means reading everything again.
                self._framework = self._cluster.policy.queues.framework
                await self._leave(self._kinds)
                while not self._restart.is_set():
                    await self._discover()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._rescan_s):
                            await self._restart.wait()
        finally:
            await self._leave(self._kinds)
            await self._leave(self._others)

    async def _discover(self) -> None:
        try:
            kinds = {resource: kind for kind, resource in await served_kinds(self._kube)}
            others = [item for item in ELSEWHERE if item in self._others or await self._kube.serves(item)]
        except ApiError as error:
            _LOG.info("the kinds of the API cannot be listed: %s", error)
            return
        await self._leave({resource: followed for resource, followed in self._kinds.items() if resource not in kinds})
        for resource in others:
            if resource not in self._others:
                keep = _claim_by_name if resource == CLAIMS else identity
                self._others[resource] = _Followed(Informer(self._kube, resource, keep=keep))
        for resource, kind in kinds.items():
            if resource not in self._kinds:
                self._kinds[resource] = _Followed(self._informer(kind, resource))

    async def _leave(self, followed: "Mapping[Resource, _Followed[Any]]") -> None:
        for resource, item in list(followed.items()):
            await item.end()
            self._kinds.pop(resource, None)
            self._others.pop(resource, None)

    def _find_object(self, location: ObjectRef) -> Object | None:
        followed = self._others.get(location.resource)
        return None if followed is None else followed.informer.objects.get((location.namespace, location.name))

    def policy_changed(self) -> None:
        """Tell that the view has another policy."""
        if self._framework is not None and self._cluster.policy.queues.framework is not self._framework:
            self._restart.set()

    def findings(self) -> Iterator[Finding]:
        """What bypasses the queues, by the current policy."""
        for followed in self._kinds.values():
            for workload in followed.informer.objects.values():
                if (finding := _find(complete(workload, self._find_object)[0], self._cluster)) is not None:
                    yield finding

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For prometheus_client."""
        gpus = Counter[tuple[str, str]]()
        for finding in self.findings():
            gpus[finding.namespace, str(finding.opted_out).lower()] += finding.gpus
        family = GaugeMetricFamily(
            "kopt_rogue_gpus", "GPUs of workloads that no queue holds.", labels=["namespace", "opted_out"]
        )
        for labels, milli in sorted(gpus.items()):
            family.add_metric(labels, milli / 1000)
        yield family

    def describe(self) -> Sequence[GaugeMetricFamily]:
        """Nothing before the first scrape, so that registering does not need the cluster."""
        return ()

    def _informer(self, kind: WorkloadKind, resource: Resource) -> Informer[Workload]:
        reference = QUEUE_REFERENCES[self._cluster.policy.queues.framework]
        # What has its label is left out by the server: nothing of it is sent, decoded or kept.
        unlabelled = f"!{reference.key}" if reference.section == "labels" and not kind.owner else ""
        unfinished = UNFINISHED_PODS if kind.resource == PODS else ""
        return Informer(
            self._kube,
            resource,
            label_selector=unlabelled,
            field_selector=unfinished,
            keep=lambda document: self._keep(document, kind),
        )

    def _keep(self, document: Object, kind: WorkloadKind) -> Workload | None:
        workload = alive(document, kind)
        if workload is None or _has_queue(workload, self._cluster):
            return None
        # Whether claims and runtimes ask for GPUs may change with them.
        if not is_evaluated(workload) and not stands_elsewhere(workload):
            return None
        return replace(workload, document=metadata_and_spec(document))


class _Followed(Generic[T]):
    """An informer at work."""

    def __init__(self, informer: Informer[T]) -> None:
        self.informer = informer
        self._task = asyncio.ensure_future(informer.run())

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _claim_by_name(claim: Object) -> Object | None:
    """Claims that pods name; those made for one pod are as many as pods, and their templates tell the same."""
    return None if is_generated(claim) else claim


def _has_queue(workload: Workload, cluster: ClusterState) -> bool:
    return bool(written_queue(cluster.policy.queues.framework, workload.kind, workload.document, workload.pod_sets))


def _find(workload: Workload, cluster: ClusterState) -> Finding | None:
    if _has_queue(workload, cluster) or not is_evaluated(workload):
        return None
    framework = cluster.policy.queues.framework
    evaluation = evaluate(workload, cluster, cluster.namespace(workload.namespace) or NamespaceDefaults(), ())
    patch = JsonPatch(copy.deepcopy({key: at(workload.document, key) for key in ("metadata", "spec")}))
    write_queue(patch, framework, workload.kind, workload.pod_sets, evaluation.queue.queue or _PLACEHOLDER)
    return Finding(
        workload.kind.resource,
        workload.namespace,
        workload.name,
        workload.gpus,
        workload.opts_out,
        evaluation.queue.queue,
        evaluation.queue.reasons[0 if evaluation.queue.conforms else -1].message,
        tuple(patch.operations),
    )
