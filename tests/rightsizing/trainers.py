"""Trainers on an API server in memory: their steps, their kubelets, and a controller that steps by their clock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import job, node, pod, space

from kopt.cluster.client.resources import JOBS, NODES, PODS, Object
from kopt.cluster.objects.progress import PROGRESS, PROGRESS_AT, STEP_SECONDS
from kopt.cluster.objects.resize_history import resizes_of
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.cluster.runtime.lease import Deposed
from kopt.controllers.rightsizing.reconciler import Reconciler, RightsizingSettings
from kopt.controllers.rightsizing.state import LiveCluster
from kopt.core.decision import Mode
from kopt.core.times import stamp
from kopt.core.units import MIB
from kopt.core.workload.rightsizing import ContainerUse, ResizeRecord
from kopt.policies.rightsizing.watch import WatchSettings

USE = ContainerUse(1000, 1500, 900 * MIB, 86_400)
BEFORE = {"cpu": "8", "memory": "1Gi"}
SETTINGS = RightsizingSettings(Mode.ENFORCE, watch=WatchSettings(baseline_s=1800.0))


class Kube(MemoryKube):
    """Resizes meet ``refused``."""

    refused: Exception | None = None

    async def patch(self, *args: Any, subresource: str = "", **options: Any) -> Object:
        if subresource == "resize" and self.refused is not None:
            raise self.refused
        return await super().patch(*args, subresource=subresource, **options)


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Term:
    """What writes ask whether it leads; after ``left`` of them the process is gone, before the next."""

    left: int | None = None
    holds: bool = True

    def require_term(self) -> None:
        if not self.holds:
            raise Deposed("another leads")
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1


class Cluster(LiveCluster):
    """Reads its informers' objects from memory at once: as informers do that are never late."""

    def __init__(self, kube: MemoryKube, mode: Mode = Mode.ENFORCE) -> None:
        super().__init__(kube, SETTINGS.keep_s, mode)  # type: ignore[arg-type]
        self.kube = kube

    def see(self) -> None:
        for informer in self.informers:
            shown: dict[Any, Any] = {}
            for document in self.kube.all(informer.resource):
                if (value := informer.read(document)) is not None:
                    key = document["metadata"].get("namespace", ""), document["metadata"]["name"]
                    shown[key] = value
            before, informer._objects = dict(informer._objects), shown
            if informer is self._pods:
                for key, value in shown.items():
                    self._pod_changed(Change(ChangeKind.UPDATED, key, before.get(key), value))


@dataclass
class Trainers:
    """Jobs of ``pods`` pods each. ``step_s`` gives the seconds of a step by the CPU that a pod of it has."""

    names: tuple[str, ...] = ("trains",)
    pods: int = 2
    step_s: Callable[[str, int], float] = lambda _name, _cpu: 2.0
    kube: Kube = field(default_factory=Kube)
    now_s: float = 1_800_000_000.0
    reported: list[tuple[str, str]] = field(default_factory=list)
    kubelet: bool = True
    refuses: str = ""

    def __post_init__(self) -> None:
        space(self.kube, "team")
        self.kube.put(NODES, node("n0"))
        self._steps = dict.fromkeys(self.names, 0.0)
        for name in self.names:
            self.kube.put(JOBS, job(name, uid=f"job-{name}"))
            for number in range(self.pods):
                self.kube.put(PODS, self._pod(f"{name}-{number}", name))

    def _pod(self, name: str, job_name: str) -> Object:
        document = pod(name, on="n0", job_name=job_name)
        document["spec"]["containers"][0]["resources"]["requests"] = dict(BEFORE)
        document["status"]["containerStatuses"][0]["resources"] = {"requests": dict(BEFORE)}
        return document

    def pass_time(self, seconds: float, every_s: float = 30.0) -> None:
        """Steps are done, reported as the log agent does; kubelets do what is wanted of them."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += every_s
            for name in self.names:
                first = self.kube.find(PODS, f"{name}-0", "team")
                if first is None:
                    continue
                self._steps[name] += every_s / self.step_s(name, cpu_of(first))
                whole = int(self._steps[name])
                # When the last whole step was done, not when it is reported.
                done_s = self.now_s - (self._steps[name] - whole) * self.step_s(name, cpu_of(first))
                notes = {PROGRESS: f"{whole}/100000", PROGRESS_AT: _fraction(done_s), STEP_SECONDS: "2"}
                self.annotate(f"{name}-0", **notes)
            self._actuate()

    def annotate(self, name: str, **notes: str | None) -> None:
        seen = self.kube.find(PODS, name, "team")
        assert seen is not None
        metadata = seen["metadata"]
        notes_now = {**metadata.get("annotations", {}), **notes}
        kept = {key: value for key, value in notes_now.items() if value is not None}
        self.kube.put(PODS, seen | {"metadata": metadata | {"annotations": kept}})

    def _actuate(self) -> None:
        if not self.kubelet:
            return
        for document in self.kube.all(PODS):
            wanted = {"requests": document["spec"]["containers"][0]["resources"]["requests"]}
            status = document["status"]
            status["conditions"] = []
            if self.refuses and wanted != status["containerStatuses"][0]["resources"]:
                refusal = {"type": "PodResizePending", "status": "True", "reason": self.refuses, "message": "full"}
                status["conditions"] = [refusal]
            else:
                status["containerStatuses"][0]["resources"] = wanted
            self.kube.put(PODS, document)

    def requests(self, name: str = "trains") -> list[dict[str, str]]:
        """Of each pod."""
        pods = [one for one in self.kube.all(PODS) if one["metadata"]["name"].startswith(f"{name}-")]
        return [one["spec"]["containers"][0]["resources"]["requests"] for one in pods]

    def history(self, name: str = "trains-0") -> list[ResizeRecord]:
        found = self.kube.find(PODS, name, "team")
        assert found is not None
        return resizes_of(found)

    def marked(self) -> list[str]:
        """Pods on which a change is open."""
        labels = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in self.kube.all(PODS)}
        return sorted(name for name, own in labels.items() if "kaiwo.ai/resizing" in own)

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.reported]


class Leader:
    """A replica that leads, stepped by hand."""

    def __init__(self, trainers: Trainers, settings: RightsizingSettings = SETTINGS, use: bool = True) -> None:
        self.trainers, self.cluster, self.term = trainers, Cluster(trainers.kube, settings.mode), Term()
        self.cluster.begin(self.term)  # type: ignore[arg-type]
        self.cluster.see()
        self._use = use
        self.reconciler = Reconciler(
            self.cluster,
            replace(settings, interval_s=60.0),
            self._read,
            lambda _regarding, reason, sentence: trainers.reported.append((reason, sentence)),
            clock=lambda: trainers.now_s,
        )

    async def _read(self) -> Any:
        names = [f"{name}-{number}" for name in self.trainers.names for number in range(self.trainers.pods)]
        return {("team", name, "a"): USE for name in names} if self._use else {}

    async def step(self) -> float:
        self.cluster.see()
        return await self.reconciler.step()

    async def run(self, seconds: float, every_s: float = 30.0) -> None:
        """Steps while time passes."""
        for _ in range(int(seconds / every_s)):
            self.trainers.pass_time(every_s)
            await self.step()

    def observe(self, seconds: float, every_s: float = 30.0) -> None:
        """What it sees while it does nothing."""
        for _ in range(int(seconds / every_s)):
            self.trainers.pass_time(every_s)
            self.cluster.see()


@contextmanager
def killed(leader: Leader, after_writes: int) -> Iterator[None]:
    """Of the block, only so many writes are done."""
    leader.term.left = after_writes
    try:
        yield
    except Killed:
        pass
    finally:
        leader.term.left = None


def cpu_of(document: Object) -> int:
    """Milli-CPU that the first container requests."""
    text = str(document["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    return int(text[:-1]) if text.endswith("m") else 1000 * int(text)


def _fraction(at_s: float) -> str:
    return stamp(at_s).replace("Z", f".{int(at_s * 1000) % 1000:03d}Z")
