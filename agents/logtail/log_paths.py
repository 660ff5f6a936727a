"""Where logs are found: files beside a trainer, the containers of a node, or pods through the API server."""

import asyncio
import glob
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt.agents.logtail.checkpoints import listing
from kopt.agents.logtail.following import FileSource, Source
from kopt.agents.logtail.jobs import Jobs
from kopt.agents.logtail.notes import Annotator, NoteSettings
from kopt.agents.logtail.notices import Notices
from kopt.agents.logtail.pods import Container, PodView, mode_of
from kopt.agents.logtail.streams import Instance, StreamSource
from kopt.cluster.api import Kube
from kopt.cluster.informer import Change
from kopt.cluster.namespaces import NamespaceView
from kopt.cluster.resources import Key
from kopt.core.decision import Mode

_LOG = logging.getLogger(__name__)
_LOOK_S = 5.0


class Files:
    """Files by name or pattern, of one job; files that come later are followed then."""

    def __init__(self, jobs: Jobs, notices: Notices, patterns: Sequence[str], job: str, source: str) -> None:
        self._jobs, self._notices, self._job, self._source = jobs, notices, job, source
        self._patterns = [str(Path(one).absolute()) for one in patterns]
        self._news = asyncio.Event()
        self.sources: dict[Path, FileSource] = {}

    async def run(self) -> None:
        """Until cancelled."""
        for pattern in self._patterns:
            self._notices.subscribe(Path(pattern).parent, self._news, whole=True)
        while True:
            self._news.clear()
            self._look()
            await self._news.wait()

    def finish(self) -> None:
        """The job has ended: read to the end."""
        self._look()
        for source in self.sources.values():
            source.finish()

    def _look(self) -> None:
        for pattern in self._patterns:
            for path in _matching(pattern):
                if path in self.sources:
                    continue
                label = self._source if len(self._patterns) == 1 and not glob.has_magic(pattern) else (
                    f"{self._source}/{path.stem}"
                )  # fmt: skip
                source = FileSource(
                    path, printable(label), self._notices, self._jobs.ledger.mark(str(path)), plain=True
                )
                self.sources[path] = source
                self._jobs.follow(self._job, source)


def printable(name: str) -> str:
    """As the endpoint takes names."""
    return "".join(one if one.isprintable() else "?" for one in name)[:512]


def _matching(pattern: str) -> list[Path]:
    if not glob.has_magic(pattern):
        return [Path(pattern)]
    return sorted(one for one in Path("/").glob(pattern.lstrip("/")) if one.is_file())


async def watch_folder(jobs: Jobs, job: str, folder: Path) -> None:
    """Send what lies in a checkpoint folder whenever it has changed, until cancelled."""
    before: list[dict[str, Any]] | None = None
    while True:
        found = await asyncio.to_thread(listing, folder)
        if found != before:
            jobs.attach(job, {"files": found, "files_at": time.time()})
            before = found
        await asyncio.sleep(_LOOK_S)


MakeSource = Callable[[PodView, Container, str, str], Source | None]
"""Pod, container, the source's name and its key; None while there is nothing to read yet."""


def node_sources(root: Path, notices: Notices, jobs: Jobs) -> MakeSource:
    """Containers' logs below ``/var/log/pods``."""

    def make(pod: PodView, container: Container, name: str, key: str) -> Source:
        folder = root / f"{pod.key[0]}_{pod.key[1]}_{pod.uid}" / container.name
        source = FileSource(folder, name, notices, jobs.ledger.mark(key), plain=False)
        source.key = key
        return source

    return make


def stream_sources(kube: Kube, jobs: Jobs) -> MakeSource:
    """Containers' logs from the API server."""

    def make(pod: PodView, container: Container, name: str, key: str) -> Source | None:
        if not container.started:
            return None
        instance = Instance(*pod.key, container.name, container.restarts)
        return StreamSource(kube, instance, name, key, time.time, jobs.ledger.mark(key))

    return make


@dataclass(frozen=True)
class PodSettings:
    """``mode`` for pods and namespaces that say nothing; ``every_namespace`` also looks at those not opted in."""

    mode: Mode = Mode.OBSERVE
    every_namespace: bool = False


class Pods:
    """What informers see of pods, as sources to read and pods to write on."""

    def __init__(self, jobs: Jobs, make: MakeSource, kube: Kube, settings: PodSettings, notes: NoteSettings,
                 namespaces: Callable[[str], NamespaceView]) -> None:  # fmt: skip
        self._jobs, self._make, self._kube, self._settings, self._notes = jobs, make, kube, settings, notes
        self._namespaces = namespaces
        self._views: dict[Key, PodView] = {}
        self._sources: dict[str, dict[str, Source]] = {}
        self._turns = asyncio.Semaphore(8)

    def pod_changed(self, change: Change[PodView]) -> None:
        """An informer's news."""
        if change.new is None:
            assert change.old is not None
            self._views.pop(change.key, None)
            self._gone(change.old)
        else:
            if change.old is not None and change.old.job != change.new.job:
                self._gone(change.old)
            self._views[change.key] = change.new
            self._look_at(change.new)

    def namespace_changed(self, change: Change[NamespaceView]) -> None:
        """Its pods may be followed or annotated from now on, or no longer."""
        for key, view in list(self._views.items()):
            if key[0] == change.key[1]:
                self._look_at(view)

    def _look_at(self, pod: PodView) -> None:
        namespace = self._namespaces(pod.key[0])
        if not (pod.wanted or namespace.managed or self._settings.every_namespace):
            if pod.uid in self._sources:
                self._gone(pod)
            return
        if pod.ended and pod.uid not in self._sources and not self._known(pod):
            return
        self._follow(pod)
        if pod.uid not in self._sources:
            return
        self._jobs.set_gpus(pod.job, pod.uid, pod.gpus)
        if pod.recorded:
            self._jobs.attach(pod.job, {"annotations": dict(pod.recorded)})
        if mode_of(pod, namespace, self._settings.mode) is Mode.OBSERVE:
            self._jobs.stop_annotating(pod.job, pod.uid)
        else:
            annotator = Annotator(self._kube, pod.key, pod.uid, self._notes, time.monotonic, self._turns)
            self._jobs.annotate(pod.job, pod.uid, annotator)

    def _follow(self, pod: PodView) -> None:
        for container in pod.containers:
            source = self._sources.get(pod.uid, {}).get(container.name)
            if source is None:
                made = self._make(pod, container, f"{pod.label}/{container.name}", f"{pod.uid}/{container.name}")
                if made is None:
                    continue
                source = self._sources.setdefault(pod.uid, {})[container.name] = made
                self._jobs.follow(pod.job, source)
            if isinstance(source, StreamSource):
                source.seen(Instance(*pod.key, container.name, container.restarts))
            if pod.ended:
                source.finish()

    def _known(self, pod: PodView) -> bool:
        return any(self._jobs.ledger.mark(f"{pod.uid}/{one.name}") is not None for one in pod.containers)

    def _gone(self, pod: PodView) -> None:
        for source in self._sources.pop(pod.uid, {}).values():
            source.finish()
        self._jobs.leave(pod.job, pod.uid)
