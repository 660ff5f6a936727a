"""The options of ``kopt controller lending``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, WorkloadMode, may_lower, refuse

if TYPE_CHECKING:
    from kopt.controllers.lending.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Lend GPUs of inference services to preemptible training while forecasts allow it; reclaim them before a spike.

    LendingPools name the services, the borrowing queues and the mode: observe (the default), annotate or enforce. With
    enforce the quotas of the queues are raised by what is lent. To reclaim GPUs, borrowers are asked to save and then
    stopped: first those that lose the least work, never one that is writing a checkpoint. They resume in the order in
    which they were evicted. `kopt off` gives everything back.

    Examples:

        kopt controller lending --kubeconfig admin.conf --predictions http://127.0.0.1:8700
    """

    predictions: Annotated[str, Flag("Prediction endpoint; empty: nothing is lent.")] = ""
    refresh_s: Annotated[float, Flag("How often forecasts are requested.", name="refresh", kind=Kind.SPAN)] = 60.0
    stale_s: Annotated[float, Flag("Older forecasts are not used.", name="stale", kind=Kind.SPAN)] = 300.0
    workload_mode: WorkloadMode = ""

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.lending.main import ProcessSettings
        from kopt.controllers.lending.ports import ControllerSettings

        if not 1 <= self.refresh_s <= self.stale_s:
            refuse("forecasts are requested at most every second, and are used for longer than that", "--refresh")
        controller = ControllerSettings(self.refresh_s, self.stale_s, workload_may_lower=may_lower(self.workload_mode))
        return ProcessSettings(controller=controller, predictions=self.predictions, **self.replica)
