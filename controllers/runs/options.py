"""The options of ``kopt controller runs``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag

if TYPE_CHECKING:
    from kopt.controllers.runs.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Tell the prediction endpoint which GPU workloads started and ended, so that it can say how long others will run.

    Reads Kueue's Workloads, and Jobs that Kueue does not manage. A run is of a type, the label kaiwo.ai/job-type or the
    name without its numbers and hashes, and of its namespace and queue. What is preempted or deleted counts as
    interrupted. Nothing is written to the cluster. `kopt runtime import` sends what ran before from a table.

    Examples:

        kopt controller runs --predictions http://127.0.0.1:8700
    """

    predictions: Annotated[str, Flag("Prediction endpoint; empty: nothing is sent.")] = ""
    cluster: Annotated[str, Flag("Name of this cluster at the endpoint, where it answers for several.")] = ""

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.runs.main import ProcessSettings

        return ProcessSettings(predictions=self.predictions, cluster=self.cluster, **self.replica)
