"""``kopt agent logtail …``: one process, from start to the end."""

import asyncio
import contextlib
import logging
import resource
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopt.agents.logtail.annotator import Annotator
from kopt.agents.logtail.claims import NodeClaims
from kopt.agents.logtail.file_events import Notices
from kopt.agents.logtail.folder_watch import VolumeWatch, watch_folder
from kopt.agents.logtail.jobs import Jobs, JobSettings
from kopt.agents.logtail.log_paths import Files, Pods, PodSettings, node_sources, stream_sources
from kopt.agents.logtail.metrics import serve_metrics
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.pods import FollowedPod, followed_pod
from kopt.agents.runtime.contained import Contained
from kopt.agents.runtime.running import beside, end_signals
from kopt.cluster.client.api import ApiError, Kube, KubeSettings, connect
from kopt.cluster.client.resources import NAMESPACES, PODS, Object
from kopt.cluster.objects.namespace import MODE_ANNOTATION, NamespaceSettings, read_namespace
from kopt.cluster.runtime.informer import Informer
from kopt.core.decision import Mode
from kopt.policies.admission.mode import effective_mode
from kopt.serving.client.client import AsyncPredictionClient

_LOG = logging.getLogger(__name__)
_NAME = "logtail"
_DEADLINE_S = 10.0
_LONGEST_PAUSE_S = 5.0
_AT_ONCE = 16
_STREAM_BUFFER_BYTES = 16 << 10


@dataclass(frozen=True)
class ProcessSettings:
    """What every form needs."""

    url: str
    """The prediction endpoint."""
    state: Path | None = None
    """The file in which places are kept; without one everything is read again after a restart."""
    kubeconfig: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    """Of metrics, which answer as long as the process lives; None: none."""
    grace_s: float = 10.0
    """After SIGTERM, for what was not sent yet."""
    jobs: JobSettings = field(default_factory=JobSettings)


@dataclass(frozen=True)
class SidecarSettings:
    """Files of one job. ``pod`` (namespace, name) is annotated where ``mode`` allows it."""

    patterns: Sequence[str]
    job: str
    source: str
    gpus: float = 0.0
    checkpoints: Path | None = None
    mode: Mode = Mode.OBSERVE
    pod: tuple[str, str] | None = None
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""


async def serve_sidecar(settings: ProcessSettings, sidecar: SidecarSettings, stop: asyncio.Event | None = None) -> None:
    """Follow files until SIGTERM, SIGINT or ``stop``; then read and send what there is still."""
    ending = end_signals(stop)
    async with _running(settings, Contained(_NAME)) as (jobs, notices), contextlib.AsyncExitStack() as stack:
        files = Files(jobs, notices, sidecar.patterns, sidecar.job, sidecar.source)
        work = [files.run()]
        if sidecar.gpus:
            jobs.set_gpus(sidecar.job, sidecar.source, sidecar.gpus)
        if sidecar.checkpoints is not None:
            work.append(watch_folder(jobs, sidecar.job, sidecar.checkpoints))
        if sidecar.pod is not None and sidecar.mode is not Mode.OBSERVE:
            kube = await stack.enter_async_context(connect(settings.kubeconfig, _kube_settings()))
            work.append(_annotate_own(jobs, kube, sidecar, settings))
        async with beside(work):
            await ending.wait()
            files.finish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.grace_s):
                    await jobs.drained()


async def serve_node(
    settings: ProcessSettings,
    pods: PodSettings,
    node: str,
    root: Path,
    stop: asyncio.Event | None = None,
    volumes: Path | None = None,
) -> None:
    """Follow the GPU pods of one node through the files of their containers, and the checkpoints in their volumes.

    ``volumes``: where the kubelet keeps these; None looks at none.
    """
    if volumes is not None and not volumes.is_dir():
        _LOG.warning("%s is no folder: checkpoints in the volumes of pods stay unknown (--volumes)", volumes)
        volumes = None
    fields = f"spec.nodeName={node}"
    await _serve_pods(
        settings,
        pods,
        fields,
        "",
        "",
        stop,
        lambda _, jobs, notices: node_sources(root, notices, jobs),
        lambda kube, jobs: VolumeWatch(jobs, volumes, claims=NodeClaims(kube, fields)) if volumes is not None else None,
    )


async def serve_cluster(
    settings: ProcessSettings,
    pods: PodSettings,
    namespace: str = "",
    selector: str = "",
    stop: asyncio.Event | None = None,
) -> None:
    """Follow GPU pods through the API server."""
    await _serve_pods(settings, pods, "", namespace, selector, stop, lambda kube, jobs, _: stream_sources(kube, jobs))


async def _serve_pods(
    settings: ProcessSettings,
    wanted: PodSettings,
    fields: str,
    namespace: str,
    selector: str,
    stop: asyncio.Event | None,
    sources: Callable[[Kube, Jobs, Notices], Any],
    looks: Callable[[Kube, Jobs], VolumeWatch | None] = lambda _, __: None,
) -> None:
    ending, contained = end_signals(stop), Contained(_NAME)
    async with connect(settings.kubeconfig, _kube_settings()) as kube, _running(settings, contained) as (jobs, notices):
        namespaces: Informer[NamespaceSettings] = Informer(
            kube, NAMESPACES, keep=read_namespace, field_selector=f"metadata.name={namespace}" if namespace else ""
        )
        informer: Informer[FollowedPod] = Informer(
            kube, PODS, namespace=namespace or None, keep=followed_pod, field_selector=fields, label_selector=selector
        )
        namespaces.isolation = informer.isolation = contained.isolation
        volumes = looks(kube, jobs)
        pods = Pods(
            jobs,
            sources(kube, jobs, notices),
            kube,
            wanted,
            settings.jobs.annotations,
            lambda name: namespaces.objects.get(("", name), NamespaceSettings()),
            volumes.watch if volumes is not None else None,
        )

        async def begin() -> None:
            # What namespaces say decides about their pods.
            await namespaces.synced.wait()
            namespaces.subscribe(pods.namespace_changed)
            informer.subscribe(pods.pod_changed)
            await informer.run()

        claims = volumes.claims if volumes is not None else None
        if claims is not None:
            claims.pods.isolation = contained.isolation
        async with beside([namespaces.run(), begin(), *([claims.run()] if claims is not None else [])]):
            await ending.wait()


@contextlib.asynccontextmanager
async def _running(settings: ProcessSettings, contained: Contained) -> AsyncIterator[tuple[Jobs, Notices]]:
    """Jobs and notices at work; at the end the places are kept."""
    _raise_file_limit()
    turns = asyncio.Semaphore(_AT_ONCE)
    async with AsyncPredictionClient(settings.url, deadline_s=_DEADLINE_S, longest_pause_s=_LONGEST_PAUSE_S) as client:

        async def post(request: Mapping[str, Any]) -> Mapping[str, Any]:
            async with turns:
                return await client.checkpoint(request)

        jobs, notices = Jobs(post, OffsetStore(settings.state), settings.jobs), Notices()
        async with serve_metrics(jobs, contained, settings.host, settings.port):
            try:
                async with beside([jobs.run(), notices.run()]):
                    await jobs.started()
                    yield jobs, notices
            finally:
                jobs.offsets.save()


async def _annotate_own(jobs: Jobs, kube: Kube, sidecar: SidecarSettings, settings: ProcessSettings) -> None:
    """The sidecar's mode applies to its pod unless the pod has an annotation of its own."""
    assert sidecar.pod is not None
    namespace, name = sidecar.pod
    try:
        pod: Object = await kube.get(PODS, name, namespace)
    except ApiError as error:
        _LOG.error("pod %s/%s is not annotated: %s", namespace, name, error)
        return
    metadata = pod["metadata"]
    own = (metadata.get("annotations") or {}).get(MODE_ANNOTATION)
    # A sidecar may read no namespaces, so that its own --mode stands for what is around the pod.
    if effective_mode(own, "", sidecar.mode, sidecar.workload_may_lower) is Mode.OBSERVE:
        _LOG.info("pod %s/%s is not annotated: its mode is observe", namespace, name)
        return
    jobs.annotate(
        sidecar.job,
        metadata["uid"],
        Annotator(
            kube,
            (namespace, name),
            metadata["uid"],
            settings.jobs.annotations,
            asyncio.get_running_loop().time,
        ),
    )


def _kube_settings() -> KubeSettings:
    return KubeSettings(user_agent="kopt-logtail", read_buffer_bytes=_STREAM_BUFFER_BYTES, connections=0)


def _raise_file_limit() -> None:
    """A file stays open while it is followed, so that it can be read to its end after it was removed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
