"""The options of ``kopt controller pairwise``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind

if TYPE_CHECKING:
    from kopt.controllers.pairwise.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Run nccl-tests or rccl-tests between pairs of nodes, and report slow pairs and faulty nodes.

    PairwiseBenchmarks say what is measured, when and at what cost (`kubectl explain pairwisebenchmark.spec`). Nodes
    take part while no pod uses their GPUs; a test ends as soon as a pod waits for them. Results are written to
    NodeBandwidths, named like the nodes, and sent to --predictions. `kopt off` ends the tests.

    Examples:

        kopt controller pairwise --kubeconfig admin.conf --tests-namespace kopt-benchmarks
    """

    tests_namespace: Annotated[str, Flag("Namespace in which the Jobs of tests run.")] = "kopt-benchmarks"
    predictions: Annotated[str, Flag("Prediction endpoint that results are sent to; empty: none.")] = ""
    cluster: Annotated[str, Flag("Name of this cluster at the endpoint.")] = "default"
    pause_s: Annotated[float, Flag("Wait before an interrupted test is run again.", name="pause", kind=Kind.SPAN)] = (
        60.0
    )

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.pairwise.main import ProcessSettings

        return ProcessSettings(
            tests_namespace=self.tests_namespace,
            predictions_url=self.predictions,
            cluster=self.cluster,
            taken_pause_s=self.pause_s,
            **self.replica,
        )
