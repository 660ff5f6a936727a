"""The options of ``kopt controller reservations``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, WorkloadMode, may_lower
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import DEFAULT_GPU_RESOURCE, Engine

if TYPE_CHECKING:
    from kopt.controllers.reservations.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Keep GPUs free for a queue's jobs at a time to come, and let others use them until then.

    Each KaiwoReservation is compared with its pool, its queue and other reservations; its status says whether it can
    be kept. With enforce, and only in namespaces with kaiwo.ai/managed: "true", idle GPUs of it are held by Jobs of
    ours in its queue. Until it starts, a job may use them if it ends in time with a probability of 95 %, by
    --predictions or by Kueue's own limit, or if it answers requests to save. When the lead begins, what does not end
    in time is stopped where its checkpoints allow it. What is not used is given back. `kopt off` gives everything
    back.

    KAI and Volcano keep nothing from starting: there nothing is held before the lead. When it begins, Jobs of ours
    claim all of it in its queue, and the engine gives them what is idle, and what others have of the queue's quota.

    Examples:

        kopt controller reservations --engine kai --mode enforce

        kopt controller reservations --kubeconfig admin.conf --mode enforce --predictions http://127.0.0.1:8700
    """

    engine: Annotated[Engine, Flag("The queueing system of the cluster.")] = Engine.KUEUE
    gpu_resource: Annotated[str, Flag("What queues of KAI and Volcano count as GPUs.")] = DEFAULT_GPU_RESOURCE
    mode: Annotated[Mode, Flag("Default mode of namespaces, workloads and reservations.")] = Mode.OBSERVE
    ahead_s: Annotated[float, Flag("How long before a start idle GPUs are held.", name="ahead", kind=Kind.SPAN)] = (
        86_400.0
    )
    predictions: Annotated[str, Flag("Prediction endpoint; empty: run times are not known.")] = ""
    cluster: Annotated[str, Flag("Name of this cluster at the endpoint, where it answers for several.")] = ""
    image: Annotated[str, Flag("Image of the pods that hold GPUs; it has to wait for ever.")] = (
        "registry.k8s.io/pause:3.10"
    )
    priority_class: Annotated[str, Flag("PriorityClass of these pods; lower than that of any job.")] = ""
    workload_mode: WorkloadMode = ""

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.reservations.hold_jobs import HoldSettings
        from kopt.controllers.reservations.main import ProcessSettings
        from kopt.controllers.reservations.reconciler import ControllerSettings

        holds = HoldSettings(self.image, self.priority_class, self.engine)
        controller = ControllerSettings(
            self.mode, self.ahead_s, holds, self.gpu_resource, may_lower(self.workload_mode)
        )
        return ProcessSettings(
            controller=controller, predictions=self.predictions, cluster=self.cluster, **self.replica
        )
