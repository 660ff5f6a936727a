"""The options of ``kopt controller health``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, PrometheusAuthority, PrometheusToken, refuse
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.health.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Weigh what speaks against GPUs and nodes, and keep new pods off those that are at fault.

    Evidence are XIDs, memory errors, row remapping, RAS, throttling and links, as exporters and node agents report
    them, jobs that fail on one node and not on others, and verdicts of other systems. Each has a weight and a
    half-life; faults of applications never count. A NodeHealth object says what is known of a node, and why. With
    annotate the extender prefers healthy nodes and GPUs; with enforce condemned nodes also have the condition
    GPUHealthy and a NoSchedule taint, never more than a share of each pool. Where GPUs are allocated by claims, the
    GPU is tainted by a DeviceTaintRule and its node stays open. Nothing that runs is evicted.
    `kopt health explain NODE` says why; `kopt off` takes back what was written.

    Examples:

        kopt controller health --prometheus http://127.0.0.1:9090

        kopt controller health --prometheus http://127.0.0.1:9090 --mode enforce --most-share 0.05
    """

    mode: Annotated[Mode, Flag("annotate: the extender goes by it; enforce: nodes or GPUs are tainted, too.")] = (
        Mode.OBSERVE
    )
    prometheus: Annotated[str, Flag("The Prometheus server that scrapes GPU exporters; empty: no exporter counts.")] = (
        ""
    )
    token_file: PrometheusToken = None
    certificate_authority: PrometheusAuthority = None
    interval_s: Annotated[float, Flag("How often exporters' series are read.", name="look", kind=Kind.SPAN)] = 15.0
    most_share: Annotated[
        float, Flag("Largest share of a pool's nodes, or GPUs, to keep free; those that are out of use already count.")
    ] = 0.1

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.health.main import ProcessSettings
        from kopt.controllers.health.reconciler import HealthSettings

        if not 0 <= self.most_share <= 1:
            refuse("a share is a number from 0 to 1", "--most-share")
        if not 1 <= self.interval_s <= 300:
            refuse("exporters are read every 1 s to 5 min", "--look")
        return ProcessSettings(
            health=HealthSettings(self.mode, self.most_share, self.interval_s),
            prometheus=self.prometheus,
            token_file=self.token_file,
            certificate_authority=self.certificate_authority,
            **self.replica,
        )
