"""The view of the cluster that informers keep: policy, namespaces, queues, and which schedulers run."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Hashable
from datetime import UTC, datetime
from typing import Any

from kopt.cluster.api import ApiError, Kube, NotFound
from kopt.cluster.informer import Informer
from kopt.cluster.namespaces import MODE_ANNOTATION
from kopt.cluster.resources import (
    CONFORMANCE_POLICIES,
    DEPLOYMENTS,
    KUEUE_LOCAL_QUEUES,
    LEASES,
    NAMESPACES,
    Object,
    Resource,
    key_of,
)
from kopt.controllers.webhook.elsewhere import CLAIM_TEMPLATES, DEVICE_CLASSES, Place, read_object
from kopt.controllers.webhook.facts import NamespaceFacts
from kopt.controllers.webhook.judging import FixedView, names_in
from kopt.controllers.webhook.objects import at, count, text
from kopt.controllers.webhook.policy import POLICY_NAME, ConformancePolicy, Evidence, PolicyError, parse_policy
from kopt.policies.conformance import NAMESPACE_ANNOTATION, Framework

_LOG = logging.getLogger(__name__)
CLOCK_SKEW_S = 5.0
"""Between this node's clock and that of whoever renews a Lease."""
KAI_QUEUES = Resource("scheduling.run.ai", "v2", "queues", "Queue", namespaced=False)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)
QUEUE_KINDS = {Framework.KUEUE: KUEUE_LOCAL_QUEUES, Framework.KAI: KAI_QUEUES, Framework.VOLCANO: VOLCANO_QUEUES}


class LiveView:
    """Answers from memory; ``run`` keeps it up to date until cancelled. ``changed`` is called with every new policy."""

    def __init__(
        self, kube: Kube, changed: Callable[[ConformancePolicy], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._kube, self._changed, self._clock = kube, changed, clock
        self._good = ConformancePolicy()
        self._policies = Informer(kube, CONFORMANCE_POLICIES, keep=self._read_policy)
        self._namespaces = Informer(kube, NAMESPACES, keep=namespace_facts)
        self._elsewhere: dict[Resource, Informer[Object]] = {
            resource: Informer(kube, resource) for resource in (DEVICE_CLASSES, CLAIM_TEMPLATES)
        }
        """What many pods name; what few do is read when it is needed."""
        self._queues: Informer[str] | None = None
        self._queue_changes = 0
        self._evidence: dict[Evidence, Informer[float]] = {}
        self._policy = ConformancePolicy()
        self._new_policy = asyncio.Event()

    @property
    def policy(self) -> ConformancePolicy:
        return self._policy

    @property
    def ready(self) -> bool:
        """Whether policy and namespaces have been read once."""
        return self._policies.synced.is_set() and self._namespaces.synced.is_set()

    async def wait_ready(self) -> None:
        await self._policies.synced.wait()
        await self._namespaces.synced.wait()

    def namespace(self, name: str) -> NamespaceFacts | None:
        return self._namespaces.objects.get(("", name))

    def find(self, place: Place) -> Object | None:
        known = self._elsewhere.get(place.resource)
        return None if known is None else known.objects.get((place.namespace, place.name))

    async def read(self, place: Place) -> Object | None:
        """What ``find`` does not know."""
        return await read_object(self._kube, place)

    async def read_namespace(self, name: str) -> NamespaceFacts | None:
        """A namespace that is too new for the informer; None when it cannot be had."""
        try:
            return namespace_facts(await self._kube.get(NAMESPACES, name))
        except (ApiError, ValueError):
            return None

    def queues(self, framework: Framework, namespace: str) -> Collection[str] | None:
        known = self._queues
        if known is None or known.resource != QUEUE_KINDS[framework] or not known.synced.is_set():
            return None
        # A queueing system whose kinds are not served says nothing about which queues there are.
        if isinstance(known.trouble, NotFound):
            return None
        return names_in(known.objects, namespace)

    def running_schedulers(self) -> Collection[str]:
        now_s = self._clock()
        return {
            found.scheduler for found, informer in self._evidence.items()
            if any(until_s >= now_s for until_s in informer.objects.values())
        }  # fmt: skip

    def moment(self) -> Hashable:
        known = self._queues
        served = known is not None and (known.synced.is_set(), isinstance(known.trouble, NotFound))
        return self._queue_changes, served, frozenset(self.running_schedulers())

    async def run(self) -> None:
        """Watch everything that decisions rest on."""
        self._policies.subscribe(lambda _: self._take_policy())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._policies.run())
            group.create_task(self._namespaces.run())
            for informer in self._elsewhere.values():
                group.create_task(informer.run())
            await self._policies.synced.wait()
            self._take_policy()
            while True:
                self._new_policy.clear()
                await self._watch_what_policy_names()

    async def _watch_what_policy_names(self) -> None:
        """Queues and schedulers of the present policy, until there is another one."""
        policy = self._policy
        self._queues = Informer(
            self._kube, QUEUE_KINDS[policy.queues.framework], keep=lambda one: one["metadata"]["name"]
        )
        self._queue_heard()
        self._queues.subscribe(self._queue_heard)
        self._evidence = {one: self._evidence_informer(one) for one in policy.evidence}
        tasks = [asyncio.ensure_future(self._queues.run())]
        tasks += [asyncio.ensure_future(one.run()) for one in self._evidence.values()]
        try:
            await self._new_policy.wait()
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _queue_heard(self, _: object = None) -> None:
        self._queue_changes += 1

    def _evidence_informer(self, evidence: Evidence) -> Informer[float]:
        resource, keep = (LEASES, lease_until) if evidence.kind == "lease" else (DEPLOYMENTS, available_until)
        return Informer(self._kube, resource, namespace=evidence.namespace, keep=keep,
                        field_selector=f"metadata.name={evidence.name}")  # fmt: skip

    def _read_policy(self, document: Object) -> ConformancePolicy | None:
        if text(document, "metadata", "name") != POLICY_NAME:
            return None
        try:
            self._good = parse_policy(document)
        except PolicyError as error:
            _LOG.error("%s; the one before it stays in force", error)
        return self._good

    def _take_policy(self) -> None:
        policy = self._policies.objects.get(("", POLICY_NAME)) or ConformancePolicy()
        if policy != self._policy or not self._new_policy.is_set():
            self._policy = policy
            self._new_policy.set()
            self._changed(policy)


async def read_once(kube: Kube) -> FixedView:
    """Policy, namespaces and queues as they are now. Raises ApiError, and PolicyError for an unusable policy."""
    policies = await _all(kube, CONFORMANCE_POLICIES) or []
    found = next((one for one in policies if text(one, "metadata", "name") == POLICY_NAME), None)
    policy = ConformancePolicy() if found is None else parse_policy(found)
    namespaces = {text(one, "metadata", "name"): namespace_facts(one) for one in await _all(kube, NAMESPACES) or []}
    queues = await _all(kube, QUEUE_KINDS[policy.queues.framework])
    return FixedView(policy, namespaces, None if queues is None else [key_of(one) for one in queues])


async def _all(kube: Kube, resource: Resource) -> list[Object] | None:
    """Every object of a kind; None when the kind is not served."""
    try:
        return (await kube.list(resource)).items
    except NotFound:
        return None


def namespace_facts(document: Object) -> NamespaceFacts:
    """The annotations of a namespace that decisions rest on."""
    annotations = at(document, "metadata", "annotations")
    return NamespaceFacts(text(annotations, NAMESPACE_ANNOTATION), text(annotations, MODE_ANNOTATION))


def lease_until(document: Object) -> float:
    """Unix time until which a Lease shows that its holder runs; minus infinity for one that nobody holds."""
    renewed = text(document, "spec", "renewTime")
    if not text(document, "spec", "holderIdentity") or not renewed:
        return float("-inf")
    at_s = datetime.fromisoformat(renewed.replace("Z", "+00:00")).astimezone(UTC).timestamp()
    return at_s + count(document, "spec", "leaseDurationSeconds", default=15) + CLOCK_SKEW_S


def available_until(document: Object) -> float:
    """Plus infinity for a Deployment with available replicas, which the cluster itself keeps true."""
    replicas: Any = at(document, "status", "availableReplicas")
    return float("inf") if isinstance(replicas, int) and replicas > 0 else float("-inf")
