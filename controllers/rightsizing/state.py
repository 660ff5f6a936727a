"""What informers have seen: pods by workload, their steps, namespaces, and what Kaiwo says of idleness."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import NAMESPACES, PODS, Object
from kopt.cluster.objects.kaiwo_workloads import GPU_WORKLOADS, GpuWorkload, read_gpu_workload
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.objects.progress import progress_of
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import LiveState
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.controllers.rightsizing.owners import Above, read_above
from kopt.controllers.rightsizing.views import ObservedPod, read_pod
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.core.workload.rightsizing import Resize
from kopt.policies.admission.mode import mode_in
from kopt.policies.rightsizing.step_times import Marks, StepMark

FEATURE = "rightsizing"


class LiveCluster(LiveState):
    """Every replica follows steps, so that who comes to lead knows what was before. ``changed`` is set where a change
    that is open may have to be decided anew."""

    def __init__(
        self,
        kube: Kube,
        keep_s: float,
        mode: Mode = Mode.OBSERVE,
        workload_may_lower: bool | None = None,
        gate: Gate = OPEN,
    ) -> None:
        super().__init__()
        self._kube, self._keep_s = kube, keep_s
        self._mode, self._may_lower, self._gate = mode, workload_may_lower, gate
        self._pods: Informer[ObservedPod] = Informer(kube, PODS, keep=read_pod, required=True)
        self._spaces: Informer[NamespaceSettings] = Informer(kube, NAMESPACES, keep=read_namespace)
        self._kaiwos: Informer[GpuWorkload] = Informer(kube, GPU_WORKLOADS, keep=read_gpu_workload)
        self._marks: dict[Owner, Marks] = {}
        self._pods.subscribe(self._pod_changed)
        self._spaces.subscribe(self._on_change)
        self.informers = (self._pods, self._spaces, self._kaiwos)

    def workloads(self) -> Mapping[Owner, Sequence[ObservedPod]]:
        """The pods of each that run, by name. Forgets the steps of those that are gone."""
        result: defaultdict[Owner, list[ObservedPod]] = defaultdict(list)
        for key in sorted(self._pods.objects):
            result[self._pods.objects[key].whose].append(self._pods.objects[key])
        self._marks = {owner: marks for owner, marks in self._marks.items() if owner in result}
        return result

    def marks(self, owner: Owner) -> Marks:
        return self._marks.setdefault(owner, Marks(self._keep_s))

    def mode(self, owner: Owner, own: str) -> Mode:
        """Of a workload that says ``own`` itself."""
        space = self._spaces.objects.get(("", owner.namespace))
        return self._gate.mode(FEATURE, owner, mode_in(space, own, self._mode, self._may_lower))

    def idle_uids(self) -> frozenset[str]:
        """Of workloads whose GPUs idle, as Kaiwo sees it."""
        return frozenset(each.workload.uid for each in self._kaiwos.objects.values() if each.idle_since_s is not None)

    async def above(self, pods: Sequence[ObservedPod]) -> Above:
        return await read_above(self._kube, pods)

    def resized(
        self, documents: Sequence[Object], resize: Resize, clock: Callable[[], float], began_s: float = 0.0
    ) -> ResizedPods:
        """Pods to write on in this term."""
        return ResizedPods(self._kube, documents, resize, clock, began_s, self._fence.require_term)

    def _pod_changed(self, change: Change[ObservedPod]) -> None:
        new = change.new
        if new is not None and (progress := progress_of([new.document])) is not None:
            self.marks(new.whose).add(StepMark(progress.at_s, progress.step))
        if any(pod is not None and pod.is_marked for pod in (change.old, new)):
            self._on_change(change)
