"""The options of ``kopt controller evictions``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind

if TYPE_CHECKING:
    from kopt.controllers.evictions.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Write an Eviction object for each GPU workload that loses its GPUs, and record when it is back.

    Covers preemption and deactivation by Kueue, suspended Jobs, evicted, drained and deleted pods, lost nodes, and
    gangs that KAI reclaims. This controller evicts and resumes nothing itself. `kopt evictions` lists the objects.

    Examples:

        kopt controller evictions --kubeconfig admin.conf --keep 90d
    """

    keep_s: Annotated[
        float, Flag("How long Evictions are kept; those of waiting workloads stay.", name="keep", kind=Kind.SPAN)
    ] = 30 * 86400.0
    most: Annotated[int, Flag("Maximum number of Evictions; the oldest are deleted first.", minimum=1)] = 5000

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.evictions.main import ProcessSettings
        from kopt.policies.evictions import Keeping

        return ProcessSettings(keeping=Keeping(self.keep_s, self.most), **self.replica)
