"""The view of the cluster that informers keep: policy, namespaces, queues, and which schedulers run."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.cluster.client.api import ApiError, Forbidden, Kube, NotFound
from kopt.cluster.client.resources import (
    CONFORMANCE_POLICIES,
    DEPLOYMENTS,
    KAIWO_POOLS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    LEASES,
    NAMESPACES,
    NODES,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.objects.custom.kaiwo_queue import pool_of
from kopt.cluster.objects.fields import at, text
from kopt.cluster.objects.leases import lease_until
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.switches import LiveSwitches, read_switches
from kopt.cluster.workloads.hardware import NodeHardware
from kopt.cluster.workloads.kueue.queues import covered_resources
from kopt.cluster.workloads.node_pools import pool_of_flavor
from kopt.cluster.workloads.requests.external import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    RESOURCE_SLICES,
    ObjectRef,
    read_object,
)
from kopt.cluster.workloads.shares.executors import KAI_CONFIGS, POLICY_NAME, executor_by_signs, kai_executor
from kopt.cluster.workloads.shares.offers import SharedGpus
from kopt.cluster.workloads.workload import NamespaceDefaults
from kopt.controllers.admission.evaluation import FixedState, names_in
from kopt.controllers.admission.node_summaries import (
    NodeSummary,
    SliceSummary,
    accelerators,
    node_summary,
    shared_gpus,
    slice_summary,
)
from kopt.controllers.admission.policy import ConformancePolicy, Evidence, PolicyError, parse_policy
from kopt.controllers.admission.teams import TeamTotals
from kopt.core.scheduling.queue_tree import KaiwoPool
from kopt.core.scheduling.submission import Framework
from kopt.core.workload.executor import Executor
from kopt.policies.admission.queue import NAMESPACE_ANNOTATION

_LOG = logging.getLogger(__name__)
KAI_QUEUES = Resource("scheduling.run.ai", "v2", "queues", "Queue", namespaced=False)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)
QUEUE_KINDS = {Framework.KUEUE: KUEUE_LOCAL_QUEUES, Framework.KAI: KAI_QUEUES, Framework.VOLCANO: VOLCANO_QUEUES}


class LiveState:
    """Answers from memory; ``run`` keeps it up to date until cancelled. ``changed`` is called with every new policy."""

    def __init__(
        self,
        kube: Kube,
        changed: Callable[[ConformancePolicy], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation or Isolation("webhook")
        self._kube, self._changed, self._clock = kube, changed, clock
        self._good = ConformancePolicy()
        self.switches = LiveSwitches(kube, "webhook")
        self.teams = TeamTotals(kube, self._switched)
        self._policies = Informer(kube, CONFORMANCE_POLICIES, keep=self._read_policy)
        self._namespaces = Informer(kube, NAMESPACES, keep=namespace_annotations)
        self._elsewhere: dict[Resource, Informer[Object]] = {
            resource: Informer(kube, resource) for resource in (DEVICE_CLASSES, CLAIM_TEMPLATES)
        }
        """What many pods name; what few do is read when it is needed."""
        self._nodes: Informer[NodeSummary] = Informer(kube, NODES, keep=node_summary)
        self._kai: Informer[Executor] = Informer(kube, KAI_CONFIGS, keep=kai_executor)
        self._slices: Informer[SliceSummary] = Informer(kube, RESOURCE_SLICES, keep=slice_summary)
        self._pools: list[Informer[KaiwoPool]] = [
            Informer(kube, KUEUE_FLAVORS, keep=pool_of_flavor),
            Informer(kube, KAIWO_POOLS, keep=pool_of),
        ]
        """A KaiwoPool says more than the ResourceFlavor of its name."""
        self._always: list[Informer[Any]] = [
            self.switches.informer,
            *self._elsewhere.values(),
            self._nodes,
            self._kai,
            self._slices,
            *self._pools,
        ]
        informers: list[Informer[Any]] = [self._policies, self._namespaces, *self._always]
        for informer in informers:
            informer.isolation = self._isolation
        self._queues: Informer[str] | None = None
        self._cluster_queues: Informer[frozenset[str]] | None = None
        """Of Kueue: what each has quota for."""
        self._changes = 0
        """Of queues and node pools."""
        self._evidence: dict[Evidence, Informer[float]] = {}
        self._policy = ConformancePolicy()
        self._new_policy = asyncio.Event()

    @property
    def policy(self) -> ConformancePolicy:
        return self._policy

    @property
    def ready(self) -> bool:
        """Whether policy, switches and namespaces have been read once."""
        return all(informer.synced.is_set() for informer in self._needed)

    async def wait_ready(self) -> None:
        for informer in self._needed:
            await informer.synced.wait()

    @property
    def _needed(self) -> tuple[Informer[Any], ...]:
        return self._policies, self.switches.informer, self._namespaces

    def namespace(self, name: str) -> NamespaceDefaults | None:
        return self._namespaces.objects.get(("", name))

    def find(self, location: ObjectRef) -> Object | None:
        informer = self._elsewhere.get(location.resource)
        return None if informer is None else informer.objects.get((location.namespace, location.name))

    async def read(self, location: ObjectRef) -> Object | None:
        """What ``find`` does not know."""
        return await read_object(self._kube, location)

    async def read_namespace(self, name: str) -> NamespaceDefaults | None:
        """A namespace that is too new for the informer; None when it cannot be had."""
        try:
            return namespace_annotations(await self._kube.get(NAMESPACES, name))
        except (ApiError, ValueError):
            return None

    def queues(self, framework: Framework, namespace: str) -> Collection[str] | None:
        informer = self._queues
        if informer is None or informer.resource != QUEUE_KINDS[framework] or not informer.synced.is_set():
            return None
        # A queueing system whose kinds are not served says nothing about which queues there are.
        if isinstance(informer.error, NotFound):
            return None
        return names_in(informer.objects, namespace)

    def pools(self) -> Mapping[str, KaiwoPool] | None:
        if not all(informer.synced.is_set() for informer in self._pools):
            return None
        if all(isinstance(informer.error, NotFound) for informer in self._pools):
            return None
        return {pool.name: pool for informer in self._pools for pool in informer.objects.values()}

    def hardware(self) -> Sequence[NodeHardware] | None:
        if not (self._nodes.synced.is_set() and self._slices.synced.is_set()):
            return None
        return accelerators(self._nodes.objects.values(), self._slices.objects.values())

    def running_schedulers(self) -> Collection[str]:
        now_s = self._clock()
        return {
            evidence.scheduler
            for evidence, informer in self._evidence.items()
            if any(until_s >= now_s for until_s in informer.objects.values())
        }

    def executor(self) -> Executor:
        if self._policy.executor is not Executor.UNKNOWN:
            return self._policy.executor
        if not (self._nodes.synced.is_set() and self._kai.synced.is_set()):
            return Executor.UNKNOWN
        executors = (node.sharing.executor for node in self._nodes.objects.values())
        by_nodes = {executor for executor in executors if executor is not None}
        return executor_by_signs(by_nodes | set(self._kai.objects.values()))

    def sharing(self) -> SharedGpus | None:
        classes = self._elsewhere[DEVICE_CLASSES]
        needed: tuple[Informer[Any], ...] = (self._nodes, self._kai, self._slices, classes)
        if not all(informer.synced.is_set() for informer in needed):
            return None
        return shared_gpus(self._nodes.objects, self._slices.objects, classes.objects, self._kai.objects)

    def covered(self, namespace: str, queue: str) -> Collection[str] | None:
        queues, cluster_queues = self._queues, self._cluster_queues
        if queues is None or cluster_queues is None or not (queues.synced.is_set() and cluster_queues.synced.is_set()):
            return None
        return cluster_queues.objects.get(("", queues.objects.get((namespace, queue), "")))

    def version(self) -> Hashable:
        informer = self._queues
        served = informer is not None and (informer.synced.is_set(), isinstance(informer.error, NotFound))
        pools = tuple((item.synced.is_set(), isinstance(item.error, NotFound)) for item in self._pools)
        return self._changes, served, pools, frozenset(self.running_schedulers())

    async def run(self) -> None:
        """Watch everything that decisions rest on."""
        self._policies.subscribe(lambda _: self._apply_policy())
        self.switches.on_change(self._switched)
        for pools in self._pools:
            pools.subscribe(self._count_change)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._policies.run())
            group.create_task(self._namespaces.run())
            group.create_task(self.teams.run())
            for informer in self._always:
                group.create_task(informer.run())
            await self._policies.synced.wait()
            await self.switches.informer.synced.wait()
            self._apply_policy()
            while True:
                self._new_policy.clear()
                await self._watch_what_policy_names()

    async def _watch_what_policy_names(self) -> None:
        """Queues and schedulers of the present policy, until there is another one."""
        policy = self._policy
        self._queues = Informer(self._kube, QUEUE_KINDS[policy.queues.framework], keep=_cluster_queue_of)
        is_kueue = policy.queues.framework is Framework.KUEUE
        self._cluster_queues = Informer(self._kube, KUEUE_CLUSTER_QUEUES, keep=covered_resources) if is_kueue else None
        self._count_change()
        self._queues.subscribe(self._count_change)
        self._evidence = {evidence: self._evidence_informer(evidence) for evidence in policy.evidence}
        tasks = [asyncio.ensure_future(self._queues.run())]
        tasks += [asyncio.ensure_future(informer.run()) for informer in self._evidence.values()]
        tasks += [asyncio.ensure_future(self._cluster_queues.run())] if self._cluster_queues is not None else []
        try:
            await self._new_policy.wait()
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _count_change(self, _: object = None) -> None:
        self._changes += 1

    def _evidence_informer(self, evidence: Evidence) -> Informer[float]:
        resource, keep = (LEASES, lease_until) if evidence.kind == "lease" else (DEPLOYMENTS, available_until)
        return Informer(
            self._kube,
            resource,
            namespace=evidence.namespace,
            keep=keep,
            field_selector=f"metadata.name={evidence.name}",
        )

    def _read_policy(self, document: Object) -> ConformancePolicy | None:
        if text(document, "metadata", "name") != POLICY_NAME:
            return None
        try:
            self._good = parse_policy(document)
        except PolicyError as error:
            _LOG.error("%s; the one before it stays in force", error)
        return self._good

    def _switched(self) -> None:
        if self._effective() != self._policy:
            self._apply_policy()

    def _effective(self) -> ConformancePolicy:
        written = self._policies.objects.get(("", POLICY_NAME)) or ConformancePolicy()
        rollout = written.rollout.at_most(self.switches.now)
        return replace(written, rollout=rollout, counts_teams=self.teams.counts)

    def _apply_policy(self) -> None:
        policy = self._effective()
        if policy != self._policy or not self._new_policy.is_set():
            self._policy = policy
            self._new_policy.set()
            self._changed(policy)


async def read_once(kube: Kube) -> FixedState:
    """Policy, namespaces and queues as they are now. Raises ApiError, and PolicyError for an unusable policy."""
    policies = await _all(kube, CONFORMANCE_POLICIES) or []
    result = next((item for item in policies if text(item, "metadata", "name") == POLICY_NAME), None)
    policy = ConformancePolicy() if result is None else parse_policy(result)
    policy = replace(policy, rollout=policy.rollout.at_most(await read_switches(kube)))
    namespaces = {
        text(item, "metadata", "name"): namespace_annotations(item) for item in await _all(kube, NAMESPACES) or []
    }
    queues = await _all(kube, QUEUE_KINDS[policy.queues.framework])
    existing = None if queues is None else [key_of(queue) for queue in queues]
    covered: dict[tuple[str, str], frozenset[str]] = {}
    if policy.queues.framework is Framework.KUEUE and queues:
        try:
            cluster_queues = await _all(kube, KUEUE_CLUSTER_QUEUES)
        except Forbidden:
            # Only what shares by claims are charged in their queues is not known then.
            cluster_queues = None
        if cluster_queues is not None:
            kept = {key_of(each)[1]: covered_resources(each) for each in cluster_queues}
            covered = {key_of(queue): kept.get(_cluster_queue_of(queue), frozenset()) for queue in queues}
    return FixedState(policy, namespaces, existing, covered_resources=covered)


async def _all(kube: Kube, resource: Resource) -> list[Object] | None:
    """Every object of a kind; None when the kind is not served."""
    try:
        return (await kube.list(resource)).items
    except NotFound:
        return None


def _cluster_queue_of(document: Object) -> str:
    """Of a LocalQueue of Kueue; empty for queues of others."""
    return text(document, "spec", "clusterQueue")


def namespace_annotations(document: Object) -> NamespaceDefaults:
    """The annotations of a namespace that decisions rest on."""
    annotations = at(document, "metadata", "annotations")
    return NamespaceDefaults(text(annotations, NAMESPACE_ANNOTATION), text(annotations, MODE_ANNOTATION))


def available_until(document: Object) -> float:
    """Plus infinity for a Deployment with available replicas, which the cluster itself keeps true."""
    replicas: Any = at(document, "status", "availableReplicas")
    return float("inf") if isinstance(replicas, int) and replicas > 0 else float("-inf")
