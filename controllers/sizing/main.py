"""``kopt controller sizing``: one replica, from start to the end."""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from prometheus_client import Counter

from kopt.cluster.client.api import ApiError, Kube, KubeSettings, connect
from kopt.cluster.client.resources import JOBS, NAMESPACES, NODES, PODS, Key, Object
from kopt.cluster.holds.hold import holder_of
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.fields import mapping, slim
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.fall_back import AlarmSource, answers_of
from kopt.cluster.runtime.index import Index
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.isolation import Subject
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.signals import end_signals, run_until
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.workloads.jobs import JOB_NAME_LABEL
from kopt.cluster.workloads.shares.executors import KAI_CONFIGS, executor_by_signs, kai_executor
from kopt.controllers.sizing.jobs import HOLDER, STATE_ANNOTATION, gpu_container
from kopt.controllers.sizing.offers import NodeOffers, all_offers, offers_of
from kopt.controllers.sizing.pods import JobPod, job_pod
from kopt.controllers.sizing.ports import AskEndpoint, SizingSettings
from kopt.controllers.sizing.profiles import SIZING_PROFILES, Learned, learned_of
from kopt.controllers.sizing.queues import Queues
from kopt.controllers.sizing.reconciler import Reconciler
from kopt.core.workload.executor import Executor
from kopt.core.workload.profile import says_out_of_memory
from kopt.policies.sizing.profiling import PartitionOffer
from kopt.policies.sizing.profiling_pod import PROFILING_LABEL

_LOG = logging.getLogger(__name__)
NAME = "sizing"
_AFTER_ERROR_S = 2.0
_ENDPOINT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    sizing: SizingSettings
    sizing_url: str = ""
    """The prediction endpoint, which knows what the code needs; empty: dry runs alone must do."""
    port: int = 9446
    executor: Executor = Executor.UNKNOWN
    """What hands out shares of a GPU, where the cluster's signs are not to be read."""
    reads_logs: bool = True
    """Search the end of a failed pod's log for out-of-memory messages."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-sizing")) as kube,
        _endpoint(settings) as (ask, alarms),
    ):
        await run_until(ending, Replica(kube, settings, ask, alarms))


@contextlib.asynccontextmanager
async def _endpoint(settings: ProcessSettings) -> AsyncIterator[tuple[AskEndpoint | None, Sequence[AlarmSource]]]:
    if not settings.sizing_url:
        yield None, ()
        return
    from kopt.serving.client.alarms import drift_of
    from kopt.serving.client.client import AsyncPredictionClient

    async with AsyncPredictionClient(settings.sizing_url, deadline_s=_ENDPOINT_S) as client:
        yield client.sizing, (drift_of(client, "sizing"), answers_of(client))


class LiveCluster:
    """The state observed by informers; ``changed`` is called with the Job that a change is about."""

    def __init__(
        self,
        kube: Kube,
        changed: Callable[[Key], None],
        *,
        reads_logs: bool = True,
        executor: Executor = Executor.UNKNOWN,
    ) -> None:
        self._kube, self._changed, self._reads_logs, self._stated = kube, changed, reads_logs, executor
        self._read: dict[str, bool] = {}
        self._jobs: Informer[Object] = Informer(kube, JOBS, keep=_kept_job)
        self._pods: Informer[JobPod] = Informer(kube, PODS, label_selector=JOB_NAME_LABEL, keep=job_pod)
        self._namespaces: Informer[NamespaceSettings] = Informer(kube, NAMESPACES, keep=read_namespace)
        self._nodes: Informer[NodeOffers] = Informer(kube, NODES, keep=offers_of)
        self._kai: Informer[Executor] = Informer(kube, KAI_CONFIGS, keep=kai_executor)
        self._profiles: Informer[Learned] = Informer(kube, SIZING_PROFILES, keep=learned_of)
        self._of_job: Index[Key, JobPod] = Index(lambda pod: [_job_of(pod)])
        self._by_digest: dict[tuple[str, str], Learned] = {}
        self._jobs.subscribe(lambda change: changed(change.key))
        self._pods.subscribe(self._pod_changed)
        self._profiles.subscribe(self._profile_changed)
        self._namespaces.subscribe(lambda change: self._enqueue_all(change.key[1]))
        self.informers = (self._namespaces, self._nodes, self._kai, self._profiles, self._pods, self._jobs)

    def every_job(self) -> list[Key]:
        return list(self._jobs.objects)

    def job(self, key: Key) -> Object | None:
        return self._jobs.objects.get(key)

    def namespace(self, name: str) -> NamespaceSettings:
        return self._namespaces.objects.get(("", name), NamespaceSettings())

    def pods(self, job: Key) -> list[JobPod]:
        return self._of_job.of(job)

    def learned(self, namespace: str, digest: str) -> Learned | None:
        return self._by_digest.get((namespace, digest))

    def offers(self, pod: Object) -> tuple[PartitionOffer, ...]:
        return all_offers(self._nodes.objects.values(), pod)

    def executor(self) -> Executor:
        if self._stated is not Executor.UNKNOWN:
            return self._stated
        of_nodes = (node.executor for node in self._nodes.objects.values() if node.executor is not None)
        return executor_by_signs([*self._kai.objects.values(), *of_nodes])

    def held(self) -> int:
        """How many Jobs this controller holds."""
        return sum(holder_of(job) == HOLDER for job in self._jobs.objects.values())

    async def last_log_lines(self, pod: JobPod) -> bool:
        if not self._reads_logs:
            return False
        if pod.uid not in self._read:
            try:
                self._read[pod.uid] = says_out_of_memory(await self._kube.log(pod.key[0], pod.key[1]))
            except ApiError as error:
                _LOG.info("the log of pod %s/%s cannot be read: %s", *pod.key, error)
                return False
        return self._read[pod.uid]

    def _pod_changed(self, change: Change[JobPod]) -> None:
        pod = change.new or change.old
        assert pod is not None
        self._of_job.follow(change)
        if change.new is None:
            self._read.pop(pod.uid, None)
        self._changed(_job_of(pod))

    def _profile_changed(self, change: Change[Learned]) -> None:
        profile = change.new or change.old
        assert profile is not None
        key = (profile.namespace, profile.digest)
        if change.new is not None:
            self._by_digest[key] = change.new
        else:
            self._by_digest.pop(key, None)
        self._enqueue_all(profile.namespace)

    def _enqueue_all(self, namespace: str) -> None:
        for key, job in self._jobs.objects.items():
            if key[0] == namespace and (holder_of(job) or PROFILING_LABEL in mapping(job, "metadata", "labels")):
                self._changed(key)


class DueKeys:
    """Jobs to reconcile, each once, when they are due."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._news = asyncio.Event()

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """The earlier of two times counts."""
        at_s = asyncio.get_running_loop().time() + after_s
        if at_s < self._due.get(key, float("inf")):
            self._due[key] = at_s
            heapq.heappush(self._heap, (at_s, key))
            self._news.set()

    async def next(self) -> Key:
        """Waits until one is due."""
        while True:
            now_s = asyncio.get_running_loop().time()
            while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            if self._heap and self._heap[0][0] <= now_s:
                key = heapq.heappop(self._heap)[1]
                del self._due[key]
                return key
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heap[0][0] - now_s if self._heap else None):
                    await self._news.wait()


class Replica(LedReplica):
    """The parts of one process, put together."""

    action = "Sizing"
    annotation_checks = checks(holder=HOLDER)

    def __init__(
        self,
        kube: Kube,
        settings: ProcessSettings,
        ask: AskEndpoint | None = None,
        alarms: Sequence[AlarmSource] = (),
    ) -> None:
        switches = LiveSwitches(kube, NAME)
        self._sizing, self._ask, self._queues = replace(settings.sizing, gate=switches), ask, Queues(kube)
        self._due = DueKeys()
        self.cluster = LiveCluster(kube, self._due.add, reads_logs=settings.reads_logs, executor=settings.executor)
        super().__init__(kube, NAME, settings, self.cluster.informers, switches, alarms)
        self._errors = Counter("kopt_sizing_errors", "Steps that failed and are retried.", registry=self.registry)
        self.gauge("held_jobs", "Jobs that wait for a dry run or a retry.", self.cluster.held)

    async def lead(self, fence: Fence) -> None:
        reconciler = Reconciler(
            self.cluster,
            self._queues,
            fence,
            self._sizing,
            self._ask,
            self._emit_event,
            complain=self._complain,
        )
        self.switched()
        while True:
            key = await self._due.next()
            again_s = await self._reconcile(reconciler, key)
            if again_s is not None:
                self._due.add(key, again_s)

    def switched(self) -> None:
        for key in self.cluster.every_job():
            self._due.add(key)

    async def _reconcile(self, reconciler: Reconciler, key: Key) -> float | None:
        """In how many seconds to run again, whatever goes wrong with this Job."""
        subject = Subject.of(JOBS, self.cluster.job(key))
        if (wait_s := self.isolation.waits_s(subject)) > 0:
            return wait_s
        try:
            with self.isolation.guard(subject) as attempt:
                return await reconciler.reconcile(key)
            return attempt.again_s
        except ApiError as error:
            _LOG.warning("Job %s/%s: %s", *key, error)
            self._errors.inc()
            return _AFTER_ERROR_S

    def _complain(self, job: Object, error: AnnotationError) -> None:
        self.isolation.complain(Subject.of(JOBS, job), error)

    def _emit_event(self, job: Object, reason: str, sentence: str) -> None:
        metadata = job["metadata"]
        self.emit_event(JOBS.reference(metadata["namespace"], metadata["name"], metadata["uid"]), reason, sentence)


def _job_of(pod: JobPod) -> Key:
    return pod.key[0], pod.job


def _kept_job(job: Object) -> Object | None:
    """GPU Jobs and profiling Jobs, without what costs memory and is never read."""
    # A Job that was given a fraction asks for no resource any more; its state tells it apart.
    ours = PROFILING_LABEL in mapping(job, "metadata", "labels") or STATE_ANNOTATION in mapping(
        job, "metadata", "annotations"
    )
    if not ours and gpu_container(job) is None:
        return None
    return slim(job)
