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

from kopt.cluster.api import ApiError, Forbidden, Kube, NotFound
from kopt.cluster.informer import Informer, identity
from kopt.cluster.resources import PODS, Object, Resource
from kopt.controllers.webhook.elsewhere import (
    CLAIMS,
    ELSEWHERE,
    Place,
    complete,
    completed,
    is_generated,
    read_object,
    stands_elsewhere,
)
from kopt.controllers.webhook.facts import NamespaceFacts, Workload, read_workload
from kopt.controllers.webhook.frameworks import MARKS, write_queue, written_queue
from kopt.controllers.webhook.judging import View, judge, judged_by_itself
from kopt.controllers.webhook.kinds import WORKLOAD_KINDS, WorkloadKind
from kopt.controllers.webhook.objects import at, items, text
from kopt.controllers.webhook.patch import JsonPatch
from kopt.controllers.webhook.registration import SYSTEM_NAMESPACES
from kopt.core.units import MilliGpu
from kopt.policies.conformance import Framework

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_FINISHED = {"Complete", "Failed", "Succeeded", "SuccessCriteriaMet"}
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


def examine(document: Object, kind: WorkloadKind, view: View) -> Finding | None:
    """The finding for one object; None for one that has a queue, needs none or has ended."""
    workload = alive(document, kind)
    return None if workload is None else _find(complete(workload, view.find)[0], view)


async def audit(kube: Kube, view: View, namespace: str = "") -> AsyncIterator[Finding]:
    """Everything that bypasses the queues now, kind by kind; kinds that are not served or not readable are left out."""
    known: dict[Place, Object | None] = {}

    async def read(place: Place) -> Object | None:
        if place not in known:
            known[place] = await read_object(kube, place)
        return known[place]

    for kind, resource in await served_kinds(kube):
        try:
            async for page in kube.pages(resource, namespace):
                for document in page.items:
                    workload = alive(document, kind)
                    if workload is None or _has_queue(workload, view):
                        continue
                    if (found := _find(await completed(workload, view.find, read), view)) is not None:
                        yield found
        except (NotFound, Forbidden):
            continue


class AuditWatch:
    """The same, kept up to date by watches; a Prometheus collector of ``kopt_rogue_gpus``.

    Only objects without a queue are kept, so that memory follows what is wrong and not the size of the cluster. Every
    ``look_every_s`` seconds kinds that the cluster has been given are begun with, and kinds that are gone left.
    """

    def __init__(self, kube: Kube, view: View, look_every_s: float = 30.0) -> None:
        self._kube, self._view, self._look_every_s = kube, view, look_every_s
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
                self._framework = self._view.policy.queues.framework
                await self._leave(self._kinds)
                while not self._restart.is_set():
                    await self._look()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._look_every_s):
                            await self._restart.wait()
        finally:
            await self._leave(self._kinds)
            await self._leave(self._others)

    async def _look(self) -> None:
        try:
            kinds = {resource: kind for kind, resource in await served_kinds(self._kube)}
            others = [one for one in ELSEWHERE if one in self._others or await self._kube.serves(one)]
        except ApiError as error:
            _LOG.info("which kinds there are cannot be read now: %s", error)
            return
        await self._leave({resource: one for resource, one in self._kinds.items() if resource not in kinds})
        for resource in others:
            if resource not in self._others:
                keep = _claim_by_name if resource == CLAIMS else identity
                self._others[resource] = _Followed(Informer(self._kube, resource, keep=keep))
        for resource, kind in kinds.items():
            if resource not in self._kinds:
                self._kinds[resource] = _Followed(self._informer(kind, resource))

    async def _leave(self, followed: "Mapping[Resource, _Followed[Any]]") -> None:
        for resource, one in list(followed.items()):
            await one.end()
            self._kinds.pop(resource, None)
            self._others.pop(resource, None)

    def _place(self, place: Place) -> Object | None:
        followed = self._others.get(place.resource)
        return None if followed is None else followed.informer.objects.get((place.namespace, place.name))

    def policy_changed(self) -> None:
        """Tell that the view has another policy."""
        if self._framework is not None and self._view.policy.queues.framework is not self._framework:
            self._restart.set()

    def findings(self) -> Iterator[Finding]:
        """What bypasses the queues, by the policy of this moment."""
        for followed in self._kinds.values():
            for workload in followed.informer.objects.values():
                if (found := _find(complete(workload, self._place)[0], self._view)) is not None:
                    yield found

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For prometheus_client."""
        gpus = Counter[tuple[str, str]]()
        for one in self.findings():
            gpus[one.namespace, str(one.opted_out).lower()] += one.gpus
        family = GaugeMetricFamily("kopt_rogue_gpus", "GPUs of workloads that no queue holds.",
                                   labels=["namespace", "opted_out"])  # fmt: skip
        for labels, milli in sorted(gpus.items()):
            family.add_metric(labels, milli / 1000)
        yield family

    def describe(self) -> Sequence[GaugeMetricFamily]:
        """Nothing before the first scrape, so that registering does not need the cluster."""
        return ()

    def _informer(self, kind: WorkloadKind, resource: Resource) -> Informer[Workload]:
        mark = MARKS[self._view.policy.queues.framework]
        # What has its label is left out by the server: nothing of it is sent, decoded or kept.
        unlabelled = f"!{mark.key}" if mark.section == "labels" and not kind.owner else ""
        unfinished = "status.phase!=Succeeded,status.phase!=Failed" if kind.resource == PODS else ""
        return Informer(
            self._kube,
            resource,
            label_selector=unlabelled,
            field_selector=unfinished,
            keep=lambda document: self._keep(document, kind),
        )

    def _keep(self, document: Object, kind: WorkloadKind) -> Workload | None:
        workload = alive(document, kind)
        if workload is None or _has_queue(workload, self._view):
            return None
        # Whether claims and runtimes ask for GPUs may change with them.
        if not judged_by_itself(workload) and not stands_elsewhere(workload):
            return None
        return replace(workload, document=judged_part(document))


def has_ended(document: Object) -> bool:
    """Whether a workload has run to its end, by its phase or its conditions."""
    if text(document, "status", "phase") in _FINISHED or text(document, "status", "jobStatus") in (
        "SUCCEEDED",
        "FAILED",
    ):
        return True
    return any(
        text(one, "type") in _FINISHED and text(one, "status") == "True"
        for _, one in items(document, "status", "conditions")
    )


class _Followed(Generic[T]):
    """An informer at work."""

    def __init__(self, informer: Informer[T]) -> None:
        self.informer = informer
        self._task = asyncio.ensure_future(informer.run())

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def served_kinds(kube: Kube) -> list[tuple[WorkloadKind, Resource]]:
    """The kinds that the cluster has, each in the first of its versions that is served."""
    versions = await kube.group_versions() | {("", "v1")}
    found = []
    for kind in WORKLOAD_KINDS:
        for version in (kind.resource.version, *kind.also_versions):
            resource = replace(kind.resource, version=version)
            if (resource.group, version) in versions and await kube.serves(resource):
                found.append((kind, resource))
                break
    return found


def judged_part(document: Object) -> Object:
    """Without the status and the books of who wrote which field: half of an object."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "spec": document.get("spec") or {}}


def _claim_by_name(claim: Object) -> Object | None:
    """Claims that pods name; those made for one pod are as many as pods, and their templates tell the same."""
    return None if is_generated(claim) else claim


def alive(document: Object, kind: WorkloadKind) -> Workload | None:
    """The workload in an object; None for one that has ended, and for the system's own."""
    namespace, name = text(document, "metadata", "namespace"), text(document, "metadata", "name")
    if namespace in SYSTEM_NAMESPACES or has_ended(document):
        return None
    return read_workload(document, *kind.key, namespace, name)


def _has_queue(workload: Workload, view: View) -> bool:
    return bool(written_queue(view.policy.queues.framework, workload.kind, workload.document, workload.pod_sets))


def _find(workload: Workload, view: View) -> Finding | None:
    if _has_queue(workload, view) or not judged_by_itself(workload):
        return None
    framework = view.policy.queues.framework
    judged = judge(workload, view, view.namespace(workload.namespace) or NamespaceFacts(), ())
    patch = JsonPatch(copy.deepcopy({key: at(workload.document, key) for key in ("metadata", "spec")}))
    write_queue(patch, framework, workload.kind, workload.pod_sets, judged.queue.queue or _PLACEHOLDER)
    return Finding(
        workload.kind.resource, workload.namespace, workload.name, workload.gpus, workload.opts_out,
        judged.queue.queue, judged.queue.reasons[0 if judged.queue.conforms else -1].message, tuple(patch.operations),
    )  # fmt: skip
