"""Claim templates of shares, from before their workload exists to when it owns them, and events on workloads.

A template is created before the workload that names it is let in, so that its pods never wait for one, and gets the
workload as its owner as soon as that has a uid: from then on Kubernetes deletes it with the workload, whether we run or
not. One whose workload never came, because somebody else refused it, is deleted after a minute.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kopt.cluster.client.api import AlreadyExists, ApiError, Kube, NotFound
from kopt.cluster.client.resources import OURS, Object, Resource
from kopt.cluster.objects.fields import at, text
from kopt.cluster.runtime.events import EventRecorder
from kopt.cluster.workloads.kinds import WORKLOAD_KINDS
from kopt.cluster.workloads.requests.external import CLAIM_TEMPLATES
from kopt.cluster.workloads.shares.writing import SHARE_LABEL, WORKLOAD_ANNOTATION
from kopt.cluster.workloads.workload import Workload

_LOG = logging.getLogger(__name__)
PATIENCE_S = 60.0
"""After which a workload that was let in and is not there is not going to come."""
_EVERY_S = 1.0
_MOST = 10_000


def resource_word(resource: Resource) -> str:
    """As ``WORKLOAD_ANNOTATION`` has it."""
    return f"{resource.plural}.{resource.version}.{resource.group}"


_RESOURCES = {resource_word(kind.resource): kind.resource for kind in WORKLOAD_KINDS}


@dataclass
class _Awaited:
    resource: Resource
    namespace: str
    message: str
    until_s: float


class ShareClaims:
    """``run`` looks for what was let in until it is there, and picks up what earlier processes have left."""

    def __init__(self, kube: Kube, events: EventRecorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._events, self._clock = kube, events, clock
        self._awaited: dict[str, _Awaited] = {}
        self._work = asyncio.Event()

    async def create(self, templates: Sequence[Object]) -> bool:
        """Whether all of them are there now."""
        for template in templates:
            try:
                await self._kube.create(CLAIM_TEMPLATES, template)
            except AlreadyExists:
                continue
            except ApiError as error:
                _LOG.warning("claim template %s cannot be created: %s", text(template, "metadata", "name"), error)
                return False
        return True

    def written(self, workload: Workload, word: str, message: str) -> None:
        """A workload with shares was let in; ``message`` becomes an event on it."""
        if len(self._awaited) < _MOST:
            self._await(word, workload.kind.resource, workload.namespace, message)

    async def run(self) -> None:
        """Until cancelled."""
        await self._pick_up()
        while True:
            await self._work.wait()
            self._work.clear()
            while self._awaited:
                await asyncio.sleep(_EVERY_S)
                await self.settle()

    async def settle(self) -> None:
        """Once for everything that is awaited."""
        for word, awaited in tuple(self._awaited.items()):
            try:
                done = await self._settle(word, awaited)
            except ApiError as error:
                _LOG.warning("claim templates of share %s cannot be looked after: %s", word, error)
                done = self._clock() >= awaited.until_s
            if done:
                self._awaited.pop(word, None)

    def _await(self, word: str, resource: Resource, namespace: str, message: str) -> None:
        self._awaited[word] = _Awaited(resource, namespace, message, self._clock() + PATIENCE_S)
        self._work.set()

    async def _pick_up(self) -> None:
        try:
            listed = (await self._kube.list(CLAIM_TEMPLATES, label_selector=f"{OURS},{SHARE_LABEL}")).items
        except ApiError as error:
            level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
            _LOG.log(level, "claim templates of earlier shares cannot be read: %s", error)
            return
        for template in listed:
            resource = _RESOURCES.get(text(template, "metadata", "annotations", WORKLOAD_ANNOTATION))
            if resource is not None and not at(template, "metadata", "ownerReferences"):
                word, space = text(template, "metadata", "labels", SHARE_LABEL), text(template, "metadata", "namespace")
                self._await(word, resource, space, "")

    async def _settle(self, word: str, awaited: _Awaited) -> bool:
        """Whether nothing is left to be done for a share."""
        selector = f"{SHARE_LABEL}={word}"
        workloads = (await self._kube.list(awaited.resource, awaited.namespace, label_selector=selector)).items
        if not workloads and self._clock() < awaited.until_s:
            return False
        templates = (
            await self._kube.list(CLAIM_TEMPLATES, awaited.namespace, label_selector=f"{OURS},{selector}")
        ).items
        for template in templates:
            if not at(template, "metadata", "ownerReferences"):
                await self._own(template, awaited.resource, workloads[0]) if workloads else await self._delete(template)
        if workloads and awaited.message:
            metadata = workloads[0]["metadata"]
            reference = awaited.resource.reference(awaited.namespace, metadata["name"], metadata["uid"])
            self._events.record(reference, "GpuShareWritten", "Share", awaited.message)
        return True

    async def _own(self, template: Object, resource: Resource, workload: Object) -> None:
        metadata = template["metadata"]
        owner = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": workload["metadata"]["name"],
            "uid": workload["metadata"]["uid"],
        }
        changes = {"metadata": {"ownerReferences": [owner], "resourceVersion": metadata["resourceVersion"]}}
        await self._kube.patch(CLAIM_TEMPLATES, metadata["name"], changes, metadata["namespace"])

    async def _delete(self, template: Object) -> None:
        metadata = template["metadata"]
        await self._kube.delete(
            CLAIM_TEMPLATES,
            metadata["name"],
            metadata["namespace"],
            resource_version=metadata["resourceVersion"],
        )
