"""The options of ``kopt controller queues``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import DEFAULT_GPU_RESOURCE, Engine

if TYPE_CHECKING:
    from kopt.controllers.queues.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Carry out the KaiwoQueues of a cluster, and say in their status what the engine cannot express.

    With --mode observe or annotate only the status is written, with what would change; with enforce the engine's
    queues too, by server-side apply. Fields of others are never taken, and queues with workloads are never deleted.

    Examples:

        kopt controller queues --engine kueue --mode enforce --kubeconfig admin.conf
    """

    engine: Annotated[Engine, Flag("The queueing system of the cluster.")] = Engine.KUEUE
    mode: Annotated[Mode, Flag("Whether queues are written, or only what would be.")] = Mode.OBSERVE
    prune: Annotated[
        bool, Flag("Delete queues whose KaiwoQueue is gone, once no workload is in them.", is_switch=True)
    ] = False
    gpu_resource: Annotated[str, Flag("What gpu means in pools that no KaiwoPool describes.")] = DEFAULT_GPU_RESOURCE

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.queues.main import ProcessSettings
        from kopt.controllers.queues.reconciler import Carrying

        carrying = Carrying(self.engine, self.mode, self.prune, self.gpu_resource)
        return ProcessSettings(carrying=carrying, **self.replica)
