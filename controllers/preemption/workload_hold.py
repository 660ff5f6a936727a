"""Workloads are held as they enter their queue if Kueue would preempt for them at once: by a webhook in the
controller's own process, which serves other reviews as well (``Reviewer``). While no replica serves it, none would
release a Workload, and none is held.

A Workload enters its queue when Kueue creates it, and when it changes while it is pending: it was released by another
holder, or its Job or its priority was changed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kopt.cluster.admission.address import TIMEOUT_S, Address
from kopt.cluster.admission.review import (
    ALLOWED,
    LARGEST_REVIEW_BYTES,
    REVIEW_LIMITS,
    Answer,
    MalformedReview,
    Review,
    encode_answer,
    let_through,
    parse_review,
)
from kopt.cluster.client.api import AlreadyExists, ApiError, Conflict, Kube, NotFound
from kopt.cluster.client.client_authority import ClientAuthority
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    KUEUE_WORKLOADS,
    MUTATING_WEBHOOKS,
    PART_OF,
    PART_OF_LABEL,
    Object,
)
from kopt.cluster.objects.fields import at, mapping
from kopt.cluster.objects.namespace import MANAGED_LABEL, SYSTEM_NAMESPACES
from kopt.cluster.runtime.http import SMALL_BODY_BYTES, HttpServer, Reply, Request
from kopt.cluster.runtime.http.certificates import ServingCertificate
from kopt.cluster.workloads.kueue.objects import HOLDER, KueueWorkload
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.preemption.patches import hold_operations

_LOG = logging.getLogger(__name__)
CONFIGURATION_NAME = "00-kaiwo-optimizer-preemption"
SECRET = "kopt-preemption-tls"
PATH = "/hold"
_RETRY_S = 5.0
FAILED = let_through(
    "met an error of its own",
    "it does not wait until there is room for it",
    "The log of the Deployment kopt-preemption has the error.",
)
_HOOK: Object = {
    "name": "hold.workloads.preemption.kaiwo.ai",
    "rules": [
        {
            "apiGroups": [KUEUE_WORKLOADS.group],
            "apiVersions": [KUEUE_WORKLOADS.version],
            "resources": [KUEUE_WORKLOADS.plural],
            "operations": ["CREATE", "UPDATE"],
            "scope": "Namespaced",
        }
    ],
    "objectSelector": {},
    "matchConditions": [
        {
            "name": "comes-to-its-queue",
            "expression": (
                "(request.operation == 'CREATE' || object.spec != oldObject.spec)"
                " && (!has(object.spec.active) || object.spec.active)"
                " && !(has(object.status) && has(object.status.admission))"
            ),
        }
    ],
}
WouldPreempt = Callable[[KueueWorkload, float], bool]


@dataclass(frozen=True)
class HoldSettings:
    """``address`` is where the API server finds the replicas, ``names`` what it connects to."""

    address: Address
    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 9453
    client_ca: Path | None = None
    """CA of those who may call, the API server's client certificate; None: anyone who reaches the port."""


class Reviewer(Protocol):
    """Reviews of one kind. ``hook``: name, rules and conditions of its webhook."""

    @property
    def path(self) -> str: ...

    @property
    def hook(self) -> Object: ...

    def answer(self, review: Review) -> Answer: ...


class Workloads:
    """Reviews of Workloads that come to their queue."""

    def __init__(self, would_preempt: WouldPreempt) -> None:
        self._would_preempt = would_preempt
        self.path, self.hook = PATH, _HOOK

    def answer(self, review: Review) -> Answer:
        """The patch that holds it, where Kueue would make room for it now."""
        now_s, workload = time.time(), _workload(review, review.object)
        before = None if review.old is None else _workload(review, review.old)
        if not _is_new(workload, before) or not self._would_preempt(workload, now_s):
            return ALLOWED
        if before is None:
            return Answer(patch=hold_operations(review.object))
        since_s = before.came_s if before.held else now_s
        return Answer(patch=hold_operations(review.object, since_s, again=before.held))


def _is_new(workload: KueueWorkload, before: KueueWorkload | None) -> bool:
    """Whether Kueue treats a Workload as a new one that neither we nor another holder has released."""
    if not (workload.active and workload.pending) or workload.shield or workload.holder not in ("", HOLDER):
        return False
    if before is None:
        return not workload.holder
    if before.holder != HOLDER:
        return not workload.holder and at(workload.document, "spec") != at(before.document, "spec")
    # Kueue recreates the Workload of a changed Job as an active one; a mere release is allowed.
    wanted, result = ({**mapping(workload.document, "spec"), "active": True} for workload in (workload, before))
    return workload.holder == HOLDER and wanted != result


def _workload(review: Review, document: Object) -> KueueWorkload:
    placed = {"name": review.name or "new", "namespace": review.namespace}
    return read_kueue_workload(document | {"metadata": dict(mapping(document, "metadata")) | placed})


class Holding:
    """Serves reviews of what is new and keeps its configuration and certificate."""

    def __init__(
        self, kube: Kube, settings: HoldSettings, reviewers: Sequence[Reviewer], led: Callable[[], bool]
    ) -> None:
        self._kube, self._settings, self._led = kube, settings, led
        self._reviewers = {reviewer.path: reviewer for reviewer in reviewers}
        self._certificate = ServingCertificate(
            kube,
            settings.address.namespace,
            SECRET,
            settings.names,
            [(MUTATING_WEBHOOKS, CONFIGURATION_NAME)],
            callers=None if settings.client_ca is None else ClientAuthority(settings.client_ca),
        )
        self._http = HttpServer(self._review, self._largest_body, limits=REVIEW_LIMITS)
        self._certificate.callers_replaced = self._http.end_connections
        self.port = 0

    async def run(self) -> None:
        """Once the cluster has been read; until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._certificate.run())
            await self._certificate.ready.wait()
            self.port = await self._http.start(self._settings.host, self._settings.port, self._certificate.context)
            _LOG.info("reviews are answered on port %d", self.port)
            while not await self._registered():
                await asyncio.sleep(_RETRY_S)

    async def stop(self) -> None:
        await self._http.stop()

    def _largest_body(self, path: str) -> int:
        return LARGEST_REVIEW_BYTES if path in self._reviewers else SMALL_BODY_BYTES

    def _review(self, request: Request) -> Reply:
        reviewer = self._reviewers.get(request.path)
        if reviewer is None:
            return Reply.text(f"there is {', '.join(self._reviewers)}\n", 404)
        try:
            review = parse_review(request.body)
        except MalformedReview as error:
            return Reply(encode_answer(error.uid)) if error.uid else Reply.text(f"{error}\n", 400)
        try:
            answer = reviewer.answer(review) if self._led() else ALLOWED
        except Exception:  # noqa: BLE001 - edge: a fault of ours must not cost a workload
            _LOG.exception("%s %s/%s is let through unread", review.kind, review.namespace, review.name)
            answer = FAILED
        return Reply(encode_answer(review.uid, answer))

    async def _registered(self) -> bool:
        wanted = configuration(self._settings.address, list(self._reviewers.values()))
        try:
            result = await self._kube.get(MUTATING_WEBHOOKS, CONFIGURATION_NAME)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await self._kube.create(MUTATING_WEBHOOKS, wanted)
                return True
            return False
        except ApiError as error:
            _LOG.warning("the webhook configuration cannot be read: %s", error)
            return False
        if bundle := at(result, "webhooks", 0, "clientConfig", "caBundle"):
            for item in wanted["webhooks"]:
                item["clientConfig"]["caBundle"] = bundle
        if result.get("webhooks") == wanted["webhooks"]:
            return True
        try:
            await self._kube.replace(MUTATING_WEBHOOKS, result | {"webhooks": wanted["webhooks"]})
        except Conflict:
            return False
        except ApiError as error:
            _LOG.warning("the webhook configuration cannot be written: %s", error)
            return False
        return True


def configuration(address: Address, reviewers: Sequence[Reviewer]) -> Object:
    """New objects in managed namespaces; callers do not wait for an answer, and none is needed."""
    labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: "preemption"}
    expressions = [
        {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": sorted({*SYSTEM_NAMESPACES, address.namespace}),
        },
        {"key": MANAGED_LABEL, "operator": "In", "values": ["true"]},
    ]
    webhooks = [
        {
            **reviewer.hook,
            "clientConfig": address.client_config(reviewer.path),
            "namespaceSelector": {"matchExpressions": expressions},
            "matchPolicy": "Equivalent",
            "failurePolicy": "Ignore",
            "timeoutSeconds": TIMEOUT_S,
            "sideEffects": "None",
            "reinvocationPolicy": "Never",
            "admissionReviewVersions": ["v1"],
        }
        for reviewer in reviewers
    ]
    return {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": MUTATING_WEBHOOKS.kind,
        "metadata": {"name": CONFIGURATION_NAME, "labels": labels},
        "webhooks": webhooks,
    }
