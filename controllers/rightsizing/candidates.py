"""What could be changed of a GPU workload that runs: one row for each container and resource."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.resize_history import resizes_of
from kopt.cluster.workloads.pod_resize import resources_of
from kopt.cluster.workloads.resizing.use import Use, together
from kopt.core.reason import Reason
from kopt.core.workload.rightsizing import AnyRecord, Bounds, ContainerUse, Lever, Resize, WidthRecord
from kopt.policies.rightsizing.cool_down import cooling_down
from kopt.policies.rightsizing.proposal import propose


@dataclass(frozen=True)
class RunningWorkload:
    """``label`` as on the command line (``job/finetune``); ``reference`` is its object, as events hold it.
    ``log_container`` has the GPUs and shows the steps; empty where that is not known."""

    namespace: str
    label: str
    reference: Object
    log_container: str = ""
    opts_out: bool = False
    ended_by_kaiwo: bool = False
    """Its GPUs idle, and Kaiwo ends what idles."""
    widths: Sequence[WidthRecord] = ()
    """Changes of its width, which a change of its pods has to keep its distance from."""

    @property
    def obstacle(self) -> Reason | None:
        """What forbids any change of it now."""
        if self.ended_by_kaiwo:
            text = "Its GPUs idle, and Kaiwo ends workloads that idle: nothing is changed of it."
            return Reason("KAIWO_ENDS_IT", text)
        if self.opts_out:
            return Reason("OPTED_OUT", "It opts out of what kopt changes.")
        return None


@dataclass(frozen=True)
class Candidate:
    """``pods`` are those that run. ``result`` is the change, or why there is none."""

    workload: RunningWorkload
    pods: Sequence[Object]
    container: str
    lever: Lever
    bounds: Bounds
    use: ContainerUse | None
    result: Resize | Reason

    @property
    def resize(self) -> Resize | None:
        return self.result if isinstance(self.result, Resize) else None

    @property
    def freed(self) -> int:
        """Of all its pods: milli-CPU or bytes."""
        return 0 if self.resize is None else self.resize.freed * len(self.pods)

    @property
    def freed_share(self) -> float:
        """Of what is requested; negative where more is."""
        return 0.0 if self.resize is None else self.resize.freed / max(1, self.bounds.request or 0)

    @property
    def log_container(self) -> str:
        return self.workload.log_container or self.container


def candidates_of(workload: RunningWorkload, pods: Sequence[Object], use: Use, now_s: float) -> Iterator[Candidate]:
    """Of the pods of one workload, which are at least one."""
    try:
        containers, *others = [resources_of(pod) for pod in pods]
    except ValueError as error:
        unreadable = Reason("NOT_RESIZABLE", f"Its resources are not those of single containers: {error}.")
        yield Candidate(workload, pods, "", Lever.CPU, Bounds(), None, unreadable)
        return
    obstacle = workload.obstacle
    if any(each != containers for each in others):
        obstacle = Reason("PODS_DIFFER", "Its pods want different resources: by their roles, or a change was left.")
    for container in containers:
        used = together([use.get((workload.namespace, pod["metadata"]["name"], container.name)) for pod in pods])
        for lever in Lever if container.resizable else ():
            why = obstacle or _rest(workload, pods, f"{lever} of {container.name}", now_s)
            result = why or propose(containers, container.name, lever, used)
            yield Candidate(workload, pods, container.name, lever, container.of(lever), used, result)


def _rest(workload: RunningWorkload, pods: Sequence[Object], subject: str, now_s: float) -> Reason | None:
    try:
        history: list[AnyRecord] = [*workload.widths, *(record for pod in pods for record in resizes_of(pod))]
    except AnnotationError as error:
        return Reason("HISTORY_UNREADABLE", str(error))
    return cooling_down(history, subject, now_s)
