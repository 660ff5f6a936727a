"""Workloads are held as Kueue creates them, where Kueue would make room for them at once: a webhook of the controller's
own process. Nobody there to answer means that nobody there would let them go, and then nothing is held.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kopt.cluster.api import AlreadyExists, ApiError, Conflict, Kube, NotFound
from kopt.cluster.certificates import ServingCertificate
from kopt.cluster.namespaces import MANAGED_LABEL
from kopt.cluster.resources import (
    COMPONENT_LABEL,
    KUEUE_WORKLOADS,
    MUTATING_WEBHOOKS,
    PART_OF,
    PART_OF_LABEL,
    Object,
)
from kopt.controllers.http import HttpServer, Reply, Request
from kopt.controllers.preemption.marks import hold_operations
from kopt.controllers.preemption.reading import workload_view
from kopt.controllers.preemption.views import WorkloadView
from kopt.controllers.webhook.objects import at, mapping
from kopt.controllers.webhook.registration import SYSTEM_NAMESPACES, TIMEOUT_S, Address
from kopt.controllers.webhook.review import ALLOWED, Answer, MalformedReview, Review, encode_answer, parse_review

_LOG = logging.getLogger(__name__)
CONFIGURATION_NAME = "00-kaiwo-optimizer-preemption"
SECRET = "kopt-preemption-tls"
PATH = "/hold"
_LARGEST_REVIEW_BYTES = 8 << 20
_RETRY_S = 5.0
WouldPreempt = Callable[[WorkloadView, float], bool]


@dataclass(frozen=True)
class HoldSettings:
    """``address`` is where the API server finds the replicas, ``names`` what it connects to."""

    address: Address
    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 9453


class Holding:
    """Serves reviews of new Workloads and keeps its configuration and certificate."""

    def __init__(self, kube: Kube, settings: HoldSettings, would_preempt: WouldPreempt,
                 led: Callable[[], bool]) -> None:  # fmt: skip
        self._kube, self._settings, self._would_preempt, self._led = kube, settings, would_preempt, led
        self._certificate = ServingCertificate(
            kube, settings.address.namespace, SECRET, settings.names, [(MUTATING_WEBHOOKS, CONFIGURATION_NAME)]
        )
        self._http = HttpServer(self._review, _LARGEST_REVIEW_BYTES)
        self.port = 0

    async def run(self) -> None:
        """Once the cluster has been read; until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._certificate.run())
            await self._certificate.ready.wait()
            self.port = await self._http.start(self._settings.host, self._settings.port, self._certificate.context)
            _LOG.info("new Workloads are reviewed on port %d", self.port)
            while not await self._registered():
                await asyncio.sleep(_RETRY_S)

    async def stop(self) -> None:
        await self._http.stop()

    def _review(self, request: Request) -> Reply:
        if request.path != PATH:
            return Reply.text(f"there is {PATH}\n", 404)
        try:
            review = parse_review(request.body)
        except MalformedReview as error:
            return Reply(encode_answer(error.uid)) if error.uid else Reply.text(f"{error}\n", 400)
        try:
            answer = self.answer(review)
        except Exception:  # noqa: BLE001 - edge: a fault of ours must not cost a workload
            _LOG.exception("Workload %s/%s is let through unread", review.namespace, review.name)
            answer = ALLOWED
        return Reply(encode_answer(review.uid, answer))

    def answer(self, review: Review) -> Answer:
        """The patch that holds it, where Kueue would make room for it now."""
        document = review.object
        if review.operation != "CREATE" or at(document, "spec", "active") is False or not self._led():
            return ALLOWED
        placed = {"name": review.name or "new", "namespace": review.namespace}
        view = workload_view(document | {"metadata": dict(mapping(document, "metadata")) | placed})
        if view.holder or not self._would_preempt(view, time.time()):
            return ALLOWED
        return Answer(patch=hold_operations(document))

    async def _registered(self) -> bool:
        wanted = configuration(self._settings.address)
        try:
            found = await self._kube.get(MUTATING_WEBHOOKS, CONFIGURATION_NAME)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await self._kube.create(MUTATING_WEBHOOKS, wanted)
                return True
            return False
        except ApiError as error:
            _LOG.warning("the webhook configuration cannot be read: %s", error)
            return False
        bundle = at(found, "webhooks", 0, "clientConfig", "caBundle")
        if bundle:
            wanted["webhooks"][0]["clientConfig"]["caBundle"] = bundle
        if found.get("webhooks") == wanted["webhooks"]:
            return True
        try:
            await self._kube.replace(MUTATING_WEBHOOKS, found | {"webhooks": wanted["webhooks"]})
        except Conflict:
            return False
        except ApiError as error:
            _LOG.warning("the webhook configuration cannot be written: %s", error)
            return False
        return True


def configuration(address: Address) -> Object:
    """New Workloads of managed namespaces; nobody is kept waiting for an answer, and none is needed."""
    labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: "preemption"}
    chosen = [{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
               "values": sorted({*SYSTEM_NAMESPACES, address.namespace})},
              {"key": MANAGED_LABEL, "operator": "In", "values": ["true"]}]  # fmt: skip
    webhook = {
        "name": "hold.workloads.preemption.kaiwo.ai", "clientConfig": address.client_config(PATH),
        "rules": [{"apiGroups": [KUEUE_WORKLOADS.group], "apiVersions": [KUEUE_WORKLOADS.version],
                   "resources": [KUEUE_WORKLOADS.plural], "operations": ["CREATE"], "scope": "Namespaced"}],
        "namespaceSelector": {"matchExpressions": chosen}, "objectSelector": {}, "matchPolicy": "Equivalent",
        "failurePolicy": "Ignore", "timeoutSeconds": TIMEOUT_S, "sideEffects": "None",
        "reinvocationPolicy": "Never", "admissionReviewVersions": ["v1"],
    }  # fmt: skip
    return {
        "apiVersion": MUTATING_WEBHOOKS.api_version, "kind": MUTATING_WEBHOOKS.kind,
        "metadata": {"name": CONFIGURATION_NAME, "labels": labels}, "webhooks": [webhook],
    }  # fmt: skip
