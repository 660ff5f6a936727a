"""The options of ``kopt controller gangs``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, WorkloadMode, may_lower
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.gangs.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Find gangs that hold GPUs without being able to start, and release one where several wait for each other.

    A gang is an Indexed Job of which all pods run at once, a Job with the annotation kaiwo.ai/gang-minimum, or a
    Workload that Kueue has admitted. It is half-placed while fewer pods than its minimum have nodes, and kube-scheduler
    finds no room for the rest. After --hold, gangs that wait for each other in a cycle are reported. With enforce, and
    only in namespaces with kaiwo.ai/managed: "true", the one that loses least work gives up its nodes: its Job is
    suspended, or its Workload deactivated, until another has started, at most for --back. `kopt off` gives back
    what is held.

    Examples:

        kopt controller gangs --kubeconfig admin.conf --mode annotate --hold 2m
    """

    mode: Annotated[Mode, Flag("Default mode of workloads and namespaces.")] = Mode.OBSERVE
    hold_s: Annotated[float, Flag("How long a half-placed gang may hold its nodes.", name="hold", kind=Kind.SPAN)] = (
        300.0
    )
    back_s: Annotated[
        float, Flag("How long a gang that was released is held at most.", name="back", kind=Kind.SPAN)
    ] = 600.0
    workload_mode: WorkloadMode = ""

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.gangs.main import ProcessSettings
        from kopt.controllers.gangs.reconciler import ControllerSettings
        from kopt.policies.gangs import GangSettings

        controller = ControllerSettings(
            self.mode, GangSettings(self.hold_s), self.back_s, may_lower(self.workload_mode)
        )
        return ProcessSettings(controller=controller, **self.replica)
