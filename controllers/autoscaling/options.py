"""The options of ``kopt controller autoscaling``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import Flag, ServerOptions

if TYPE_CHECKING:
    from kopt.controllers.autoscaling.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ServerOptions):
    """Give HorizontalPodAutoscalers the forecasts of services, as external metrics (external.metrics.k8s.io).

    The API server asks for kopt_requests_per_second or kopt_gpus_needed of a service in the autoscaler's namespace. The
    answer is the largest demand that the prediction endpoint forecasts within the lead time. Where there is no forecast
    of a model there is no metric, and the autoscaler keeps its scale. Only the API server may call.

    Examples:

        kopt controller autoscaling --tls /etc/kopt/tls --predictions http://127.0.0.1:8700
    """

    tls: Annotated[Path, Flag("Folder with tls.crt and tls.key for the API server's calls.", metavar="FOLDER")]
    predictions: Annotated[str, Flag("Prediction endpoint; empty: there are no metrics.")] = ""
    api_port: Annotated[int, Flag("Port of the API server's calls; 0 takes a free one.")] = 9458

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.autoscaling.main import ProcessSettings

        return ProcessSettings(
            kubeconfig=self.kubeconfig,
            host=self.host,
            port=self.port,
            api_port=self.api_port,
            tls=self.tls,
            predictions=self.predictions,
        )
