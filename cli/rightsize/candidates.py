"""What could be changed of the GPU workloads that run: one row for each container and resource."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.rightsize.use import Use, together
from kopt.core.reason import Reason
from kopt.core.workload.rightsizing import Bounds, ContainerUse, Lever, Resize

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object
    from kopt.controllers.overview.running_workloads import PodKind


@dataclass(frozen=True)
class Candidate:
    """``pods`` are those that run. ``result`` is the change, or why there is none."""

    pod_kind: "PodKind"
    pods: Sequence["Object"]
    container: str
    lever: Lever
    bounds: Bounds
    use: ContainerUse | None
    result: Resize | Reason

    @property
    def namespace(self) -> str:
        return self.pod_kind.workload.namespace

    @property
    def resize(self) -> Resize | None:
        return self.result if isinstance(self.result, Resize) else None

    @property
    def freed(self) -> int:
        """Of all its pods: milli-CPU or bytes."""
        return 0 if self.resize is None else self.resize.freed * len(self.pods)


async def read_candidates(
    kube: "Kube", use: Use, now_s: float, namespace: str = "", workload: str = ""
) -> list[Candidate]:
    """Of every workload with GPUs that runs, or of the one that is named as KIND/NAME."""
    from kopt.cli.cluster.idle import read_kaiwos, uid_of
    from kopt.controllers.overview.running_workloads import running

    kaiwos = await read_kaiwos(kube, namespace)
    pods = await running_pods(kube, namespace)
    result: list[Candidate] = []
    async for pod_kind in running(kube, namespace):
        if workload and pod_kind.label.lower() != workload.lower():
            continue
        of_it = [pods[key] for name in pod_kind.pod_names if (key := (pod_kind.workload.namespace, name)) in pods]
        kaiwo = kaiwos.get(uid_of(pod_kind))
        idles = kaiwo is not None and kaiwo.idle_since_s is not None
        if of_it:
            result += candidates_of(pod_kind, of_it, use, now_s, ended_by_kaiwo=idles)
    return result


async def running_pods(kube: "Kube", namespace: str) -> "dict[tuple[str, str], Object]":
    """Pods whose containers have started, by namespace and name."""
    from kopt.cluster.client.resources import PODS, key_of

    return {
        key_of(pod): pod
        async for page in kube.pages(PODS, namespace, field_selector="status.phase=Running")
        for pod in page.items
        if "deletionTimestamp" not in pod["metadata"]
    }


def candidates_of(
    pod_kind: "PodKind", pods: "Sequence[Object]", use: Use, now_s: float, *, ended_by_kaiwo: bool
) -> Iterator[Candidate]:
    """Of the pods of one workload, which are at least one."""
    from kopt.cluster.workloads.pod_resize import resources_of
    from kopt.policies.rightsizing.proposal import propose

    try:
        containers, *others = [resources_of(pod) for pod in pods]
    except ValueError as error:
        unreadable = Reason("NOT_RESIZABLE", f"Its resources are not those of single containers: {error}.")
        yield Candidate(pod_kind, pods, "", Lever.CPU, Bounds(), None, unreadable)
        return
    obstacle = _obstacle(pod_kind, ended_by_kaiwo=ended_by_kaiwo)
    if any(each != containers for each in others):
        obstacle = Reason("PODS_DIFFER", "Its pods want different resources: by their roles, or a change was left.")
    for container in containers:
        namespace = pod_kind.workload.namespace
        used = together([use.get((namespace, pod["metadata"]["name"], container.name)) for pod in pods])
        for lever in Lever if container.resizable else ():
            why = obstacle or _rest(pods, container.name, lever, now_s)
            result = why or propose(containers, container.name, lever, used)
            yield Candidate(pod_kind, pods, container.name, lever, container.of(lever), used, result)


def _obstacle(pod_kind: "PodKind", *, ended_by_kaiwo: bool) -> Reason | None:
    """What forbids any change of a workload now."""
    if ended_by_kaiwo:
        return Reason("KAIWO_ENDS_IT", "Its GPUs idle, and Kaiwo ends workloads that idle: nothing is changed of it.")
    if pod_kind.workload.opts_out:
        return Reason("OPTED_OUT", "It opts out of what kopt changes.")
    return None


def _rest(pods: "Sequence[Object]", container: str, lever: Lever, now_s: float) -> Reason | None:
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.resize_history import resizes_of
    from kopt.policies.rightsizing.cool_down import cooling_down

    try:
        history = [record for pod in pods for record in resizes_of(pod)]
    except AnnotationError as error:
        return Reason("HISTORY_UNREADABLE", str(error))
    return cooling_down(history, container, lever, now_s)
