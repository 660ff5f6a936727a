"""``kopt controller sizing``: one replica, from start to the end."""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from prometheus_client import Counter

from kopt.cluster.api import ApiError, Kube, KubeSettings, connect
from kopt.cluster.held import holder_of
from kopt.cluster.informer import Change, Informer
from kopt.cluster.lease import Fence
from kopt.cluster.namespaces import NamespaceView, namespace_view
from kopt.cluster.resources import JOBS, NAMESPACES, NODES, PODS, Key, Object
from kopt.controllers.lifetime import end_signals, run_until
from kopt.controllers.replica import LedReplica, ReplicaSettings
from kopt.controllers.sizing.given import AskEndpoint, SizingSettings
from kopt.controllers.sizing.jobs import HOLDER, STATE_ANNOTATION, gpu_container
from kopt.controllers.sizing.offers import NodeOffers, all_offers, offers_of
from kopt.controllers.sizing.pods import JOB_NAME_LABEL, PodView, pod_view
from kopt.controllers.sizing.profiles import SIZING_PROFILES, Learned, learned_of
from kopt.controllers.sizing.queues import Queues
from kopt.controllers.sizing.reconciler import Reconciler
from kopt.controllers.webhook.objects import mapping
from kopt.core.profile import says_out_of_memory
from kopt.policies.profiling import PartitionOffer
from kopt.policies.profiling_pod import PROFILING_LABEL

_LOG = logging.getLogger(__name__)
NAME = "sizing"
_AFTER_TROUBLE_S = 2.0
_ENDPOINT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(ReplicaSettings):
    """Everything of one replica."""

    sizing: SizingSettings
    sizing_url: str = ""
    """The prediction endpoint, which knows what the code needs; empty: dry runs alone must do."""
    port: int = 9446
    reads_logs: bool = True
    """Look at the end of a failed pod's log for words that say that memory ran out."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with (
        connect(settings.kubeconfig, KubeSettings(user_agent="kopt-sizing")) as kube,
        _endpoint(settings) as ask,
    ):
        await run_until(ending, Replica(kube, settings, ask))


@contextlib.asynccontextmanager
async def _endpoint(settings: ProcessSettings) -> AsyncIterator[AskEndpoint | None]:
    if not settings.sizing_url:
        yield None
        return
    from kopt.serving.client import AsyncPredictionClient

    async with AsyncPredictionClient(settings.sizing_url, deadline_s=_ENDPOINT_S) as client:
        yield client.sizing


class LiveCluster:
    """What informers have seen; ``changed`` is told the Job that a change is about."""

    def __init__(self, kube: Kube, changed: Callable[[Key], None], *, reads_logs: bool = True) -> None:
        self._kube, self._changed, self._reads_logs = kube, changed, reads_logs
        self._read: dict[str, bool] = {}
        self._jobs: Informer[Object] = Informer(kube, JOBS, keep=_kept_job)
        self._pods: Informer[PodView] = Informer(kube, PODS, label_selector=JOB_NAME_LABEL, keep=pod_view)
        self._namespaces: Informer[NamespaceView] = Informer(kube, NAMESPACES, keep=namespace_view)
        self._nodes: Informer[NodeOffers] = Informer(kube, NODES, keep=offers_of)
        self._profiles: Informer[Learned] = Informer(kube, SIZING_PROFILES, keep=learned_of)
        self._of_job: dict[Key, dict[str, PodView]] = {}
        self._by_digest: dict[tuple[str, str], Learned] = {}
        self._jobs.subscribe(lambda change: changed(change.key))
        self._pods.subscribe(self._pod_changed)
        self._profiles.subscribe(self._profile_changed)
        self._namespaces.subscribe(lambda change: self._enqueue_all(change.key[1]))
        self.informers = (self._namespaces, self._nodes, self._profiles, self._pods, self._jobs)

    def every_job(self) -> list[Key]:
        return list(self._jobs.objects)

    def job(self, key: Key) -> Object | None:
        return self._jobs.objects.get(key)

    def namespace(self, name: str) -> NamespaceView:
        return self._namespaces.objects.get(("", name), NamespaceView())

    def pods(self, job: Key) -> list[PodView]:
        return list(self._of_job.get(job, {}).values())

    def learned(self, namespace: str, digest: str) -> Learned | None:
        return self._by_digest.get((namespace, digest))

    def offers(self, pod: Object) -> tuple[PartitionOffer, ...]:
        return all_offers(self._nodes.objects.values(), pod)

    def held(self) -> int:
        """How many Jobs this controller holds."""
        return sum(holder_of(job) == HOLDER for job in self._jobs.objects.values())

    async def last_words(self, pod: PodView) -> bool:
        if not self._reads_logs:
            return False
        if pod.uid not in self._read:
            try:
                self._read[pod.uid] = says_out_of_memory(await self._kube.log(pod.key[0], pod.key[1]))
            except ApiError as error:
                _LOG.info("the log of pod %s/%s cannot be read: %s", *pod.key, error)
                return False
        return self._read[pod.uid]

    def _pod_changed(self, change: Change[PodView]) -> None:
        view = change.new or change.old
        assert view is not None
        key = (view.key[0], view.job)
        pods = self._of_job.setdefault(key, {})
        if change.new is not None:
            pods[view.uid] = view
        else:
            pods.pop(view.uid, None)
            self._read.pop(view.uid, None)
            if not pods:
                del self._of_job[key]
        self._changed(key)

    def _profile_changed(self, change: Change[Learned]) -> None:
        view = change.new or change.old
        assert view is not None
        place = (view.namespace, view.digest)
        if change.new is not None:
            self._by_digest[place] = change.new
        else:
            self._by_digest.pop(place, None)
        self._enqueue_all(view.namespace)

    def _enqueue_all(self, namespace: str) -> None:
        for key, job in self._jobs.objects.items():
            if key[0] == namespace and (holder_of(job) or PROFILING_LABEL in mapping(job, "metadata", "labels")):
                self._changed(key)


class DueKeys:
    """Jobs to look at, each once, when they are due."""

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

    def __init__(self, kube: Kube, settings: ProcessSettings, ask: AskEndpoint | None = None) -> None:
        self._settings, self._ask, self._queues = settings, ask, Queues(kube)
        self._due = DueKeys()
        self.cluster = LiveCluster(kube, self._due.add, reads_logs=settings.reads_logs)
        super().__init__(kube, NAME, settings, self.cluster.informers)
        self._troubles = Counter("kopt_sizing_errors", "Steps that failed and are tried again.", registry=self.registry)
        self.gauge("held_jobs", "Jobs that wait for a dry run or a new try.", self.cluster.held)

    async def lead(self, fence: Fence) -> None:
        reconciler = Reconciler(self.cluster, self._queues, fence, self._settings.sizing, self._ask, self._tell)
        for key in self.cluster.every_job():
            self._due.add(key)
        while True:
            key = await self._due.next()
            try:
                again_s = await reconciler.reconcile(key)
            except ApiError as error:
                _LOG.warning("Job %s/%s: %s", *key, error)
                self._troubles.inc()
                again_s = _AFTER_TROUBLE_S
            if again_s is not None:
                self._due.add(key, again_s)

    def _tell(self, job: Object, reason: str, sentence: str) -> None:
        metadata = job["metadata"]
        self.tell(JOBS.reference(metadata["namespace"], metadata["name"], metadata["uid"]), reason, "Sizing", sentence)


def _kept_job(job: Object) -> Object | None:
    """GPU Jobs and profiling Jobs, without what costs memory and is never looked at."""
    # A Job that was given a fraction asks for no resource any more; its state tells it apart.
    ours = PROFILING_LABEL in mapping(job, "metadata", "labels") or STATE_ANNOTATION in mapping(
        job, "metadata", "annotations"
    )
    if not ours and gpu_container(job) is None:
        return None
    job["metadata"].pop("managedFields", None)
    return job
