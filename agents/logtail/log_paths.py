"""Where logs are found: files beside a trainer, the containers of a node, or pods through the API server."""

import asyncio
import glob
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kopt.agents.logtail.annotator import AnnotationSettings, Annotator
from kopt.agents.logtail.file_events import Notices
from kopt.agents.logtail.following import FileSource, Source
from kopt.agents.logtail.jobs import Jobs
from kopt.agents.logtail.pods import Container, FollowedPod, mode_of
from kopt.agents.logtail.streams import Instance, StreamSource
from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import Key
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.cluster.runtime.informer import Change
from kopt.core.decision import Mode

_LOG = logging.getLogger(__name__)


class Files:
    """Files by name or pattern, of one job; files that come later are followed then."""

    def __init__(self, jobs: Jobs, notices: Notices, patterns: Sequence[str], job: str, source: str) -> None:
        self._jobs, self._notices, self._job, self._source = jobs, notices, job, source
        self._patterns = [str(Path(pattern).absolute()) for pattern in patterns]
        self._changed = asyncio.Event()
        self.sources: dict[Path, FileSource] = {}

    async def run(self) -> None:
        """Until cancelled."""
        for pattern in self._patterns:
            self._notices.subscribe(Path(pattern).parent, self._changed, whole=True)
        while True:
            self._changed.clear()
            self._scan()
            await self._changed.wait()

    def finish(self) -> None:
        """The job has ended: read to the end."""
        self._scan()
        for source in self.sources.values():
            source.finish()

    def _scan(self) -> None:
        for pattern in self._patterns:
            for path in _matching(pattern):
                if path in self.sources:
                    continue
                label = (
                    self._source
                    if len(self._patterns) == 1 and not glob.has_magic(pattern)
                    else (f"{self._source}/{path.stem}")
                )
                source = FileSource(
                    path, printable(label), self._notices, self._jobs.offsets.position(str(path)), plain=True
                )
                self.sources[path] = source
                self._jobs.follow(self._job, source)


def printable(name: str) -> str:
    """As the endpoint takes names."""
    return "".join(item if item.isprintable() else "?" for item in name)[:512]


def _matching(pattern: str) -> list[Path]:
    if not glob.has_magic(pattern):
        return [Path(pattern)]
    return sorted(path for path in Path("/").glob(pattern.lstrip("/")) if path.is_file())


MakeSource = Callable[[FollowedPod, Container, str, str], Source | None]
"""Pod, container, the source's name and its key; None while there is nothing to read yet."""


Watch = Callable[[FollowedPod], Coroutine[Any, Any, None]]
"""Looks at a pod's files until it is cancelled."""


def node_sources(root: Path, notices: Notices, jobs: Jobs) -> MakeSource:
    """Containers' logs below ``/var/log/pods``."""

    def make(pod: FollowedPod, container: Container, name: str, key: str) -> Source:
        folder = root / f"{pod.key[0]}_{pod.key[1]}_{pod.uid}" / container.name
        source = FileSource(folder, name, notices, jobs.offsets.position(key), plain=False)
        source.key = key
        return source

    return make


def stream_sources(kube: Kube, jobs: Jobs) -> MakeSource:
    """Containers' logs from the API server."""

    def make(pod: FollowedPod, container: Container, name: str, key: str) -> Source | None:
        if not container.started:
            return None
        instance = Instance(*pod.key, container.name, container.restarts)
        return StreamSource(kube, instance, name, key, time.time, jobs.offsets.position(key))

    return make


@dataclass(frozen=True)
class PodSettings:
    """``mode`` for pods and namespaces that say nothing; ``every_namespace`` also looks at those not opted in."""

    mode: Mode = Mode.OBSERVE
    every_namespace: bool = False
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""


class Pods:
    """What informers see of pods, as sources to read and pods to write on."""

    def __init__(
        self,
        jobs: Jobs,
        make: MakeSource,
        kube: Kube,
        settings: PodSettings,
        annotations: AnnotationSettings,
        namespaces: Callable[[str], NamespaceSettings],
        watch: Watch | None = None,
    ) -> None:
        self._jobs, self._make, self._kube, self._settings, self._annotations = jobs, make, kube, settings, annotations
        self._namespaces, self._watch = namespaces, watch
        self._views: dict[Key, FollowedPod] = {}
        self._sources: dict[str, dict[str, Source]] = {}
        self._turns = asyncio.Semaphore(8)

    def pod_changed(self, change: Change[FollowedPod]) -> None:
        """An informer's news."""
        if change.new is None:
            assert change.old is not None
            self._views.pop(change.key, None)
            self._stop_following(change.old)
        else:
            if change.old is not None and change.old.job != change.new.job:
                self._stop_following(change.old)
            self._views[change.key] = change.new
            self._observe(change.new)

    def namespace_changed(self, change: Change[NamespaceSettings]) -> None:
        """Its pods may be followed or annotated from now on, or no longer."""
        for key, pod in list(self._views.items()):
            if key[0] == change.key[1]:
                self._observe(pod)

    def _observe(self, pod: FollowedPod) -> None:
        namespace = self._namespaces(pod.key[0])
        if not (pod.wanted or namespace.managed or self._settings.every_namespace):
            if pod.uid in self._sources:
                self._stop_following(pod)
            return
        if pod.ended and pod.uid not in self._sources and not self._has_offset(pod):
            return
        self._follow(pod)
        if pod.uid not in self._sources:
            return
        self._jobs.set_gpus(pod.job, pod.uid, pod.gpus)
        if pod.finished:
            self._jobs.stop_watching(pod.job, pod.uid)
        elif self._watch is not None:
            self._jobs.watch(pod.job, pod.uid, partial(self._watch, pod))
        if pod.recorded:
            self._jobs.attach(pod.job, {"annotations": dict(pod.recorded)})
        if mode_of(pod, namespace, self._settings.mode, self._settings.workload_may_lower) is Mode.OBSERVE:
            self._jobs.stop_annotating(pod.job, pod.uid)
        else:
            annotator = Annotator(self._kube, pod.key, pod.uid, self._annotations, time.monotonic, self._turns)
            self._jobs.annotate(pod.job, pod.uid, annotator)

    def _follow(self, pod: FollowedPod) -> None:
        for container in pod.containers:
            source = self._sources.get(pod.uid, {}).get(container.name)
            if source is None:
                made = self._make(pod, container, f"{pod.label}/{container.name}", f"{pod.uid}/{container.name}")
                if made is None:
                    continue
                source = self._sources.setdefault(pod.uid, {})[container.name] = made
                self._jobs.follow(pod.job, source)
            if isinstance(source, StreamSource):
                source.follow(Instance(*pod.key, container.name, container.restarts))
            if pod.ended:
                source.finish()

    def _has_offset(self, pod: FollowedPod) -> bool:
        return any(
            self._jobs.offsets.position(f"{pod.uid}/{container.name}") is not None for container in pod.containers
        )

    def _stop_following(self, pod: FollowedPod) -> None:
        for source in self._sources.pop(pod.uid, {}).values():
            source.finish()
        self._jobs.leave(pod.job, pod.uid)
