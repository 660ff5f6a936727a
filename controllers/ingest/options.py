"""The options of ``kopt controller ingest``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, PrometheusAuthority, PrometheusToken, refuse

if TYPE_CHECKING:
    from kopt.controllers.ingest.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Push the live demand of services from Prometheus to the prediction endpoint, so that it answers by name.

    Services and where their demand is measured are named by LendingPools (`demandSource`) and by a services.toml. Each
    bucket of five minutes is pushed once it has ended; late and restated samples are pushed again, gaps stay gaps. On
    start, and after an outage, what is missing is filled in. `kopt demand ingest` does the same by hand.

    Examples:

        kopt controller ingest --prometheus http://127.0.0.1:9090 --predictions http://127.0.0.1:8700
    """

    prometheus: Annotated[str, Flag("The Prometheus server; empty: nothing is measured.")] = ""
    token_file: PrometheusToken = None
    certificate_authority: PrometheusAuthority = None
    predictions: Annotated[str, Flag("Prediction endpoint; empty: nothing is pushed.")] = ""
    services: Annotated[Path | None, Flag("A services.toml with further services.", metavar="FILE")] = None
    backfill_s: Annotated[
        float, Flag("How much history is filled in; 14d is kept.", name="backfill", kind=Kind.SPAN)
    ] = 14 * 86400.0
    reread_s: Annotated[
        float, Flag("How far back late and restated samples are noticed.", name="reread", kind=Kind.SPAN)
    ] = 1800.0
    settle_s: Annotated[
        float, Flag("Wait after the end of a bucket for the last scrape.", name="settle", kind=Kind.SPAN)
    ] = 2.0

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.ingest.ingester import IngestSettings
        from kopt.controllers.ingest.main import ProcessSettings

        if not 300 <= self.reread_s <= self.backfill_s:
            refuse("at least one bucket is read again, and not more than is filled in", "--reread")
        if not 0 < self.settle_s < 300:
            refuse("a bucket is read before the next one has ended", "--settle")
        ingest = IngestSettings(self.backfill_s, self.reread_s, self.settle_s)
        return ProcessSettings(
            ingest=ingest,
            prometheus=self.prometheus,
            token_file=self.token_file,
            certificate_authority=self.certificate_authority,
            predictions=self.predictions,
            services=self.services,
            **self.replica,
        )
