"""The options of ``kopt controller partitions``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, refuse
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.partitions.main import ProcessSettings

DEFAULT_CONFIGURATIONS = "gpu-operator/default-mig-parted-config"


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Cut the GPUs of idle nodes into MIG instances as MIGStrategies and what waits need them.

    Pods that wait for nvidia.com/mig-* and claims for instances are counted, and an integer programme selects which
    idle nodes get which configuration of NVIDIA's mig-manager; the status of each MIGStrategy says what, and what is
    left undone. With enforce the node is cordoned, its label nvidia.com/mig.config is written once nothing runs on it,
    and it takes pods again when it has the instances. Nodes whose driver cuts on demand are left to it. What runs is
    never touched. `kopt off` gives labels back.

    Examples:

        kopt controller partitions --kubeconfig admin.conf --mode enforce
    """

    mode: Annotated[Mode, Flag("enforce cuts nodes; else the plan is shown.")] = Mode.OBSERVE
    configurations: Annotated[str, Flag("ConfigMap of mig-manager's configurations.", metavar="NAMESPACE/NAME")] = (
        DEFAULT_CONFIGURATIONS
    )
    at_once: Annotated[int, Flag("Nodes that are being cut at a time.", name="at-once", minimum=1)] = 4
    settle_s: Annotated[
        float, Flag("Wait after the cordon, for pods that were scheduled before.", name="settle", kind=Kind.SPAN)
    ] = 3.0
    cut_s: Annotated[float, Flag("After so long cutting has failed.", name="cut-within", kind=Kind.SPAN)] = 900.0

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.partitions.executors import MigManager
        from kopt.controllers.partitions.main import ProcessSettings
        from kopt.controllers.partitions.reconciler import ControllerSettings

        namespace, slash, name = self.configurations.partition("/")
        if not namespace or not slash or not name:
            refuse(f"{self.configurations!r} is no NAMESPACE/NAME", "--configurations")
        controller = ControllerSettings(self.mode, self.at_once, MigManager(self.settle_s, self.cut_s))
        return ProcessSettings(controller=controller, configurations=(namespace, name), **self.replica)
