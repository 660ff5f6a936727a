"""The options of ``kopt controller rightsizing``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import (
    ControllerOptions,
    Flag,
    Kind,
    PrometheusAuthority,
    PrometheusToken,
    WorkloadMode,
    may_lower,
    refuse,
)
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.rightsizing.main import ProcessSettings

_SHORTEST_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Change CPU and memory of running GPU workloads in place, watch their steps, and keep each change or undo it.

    What `kopt rightsize` does at a person's word, for all workloads: proposals are events (ResizeProposed). With
    enforce, and only in namespaces with kaiwo.ai/managed: "true", they are carried out: one resource of one container
    at a time, of at most --most-open workloads, never while a checkpoint is written. Steps come from the annotations of
    `kopt agent logtail` (kaiwo.ai/progress); without them nothing is changed. What is not shown within nine minutes to
    leave steps as fast as before is taken back. `kopt off` takes back what is open.

    Examples:

        kopt controller rightsizing --prometheus http://127.0.0.1:9090

        kopt controller rightsizing --prometheus http://127.0.0.1:9090 --mode enforce --most-open 4
    """

    mode: Annotated[Mode, Flag("enforce changes workloads; else changes are proposed.")] = Mode.OBSERVE
    prometheus: Annotated[
        str, Flag("The Prometheus server that scrapes the kubelets' cAdvisor; without it nothing is proposed.")
    ] = ""
    token_file: PrometheusToken = None
    certificate_authority: PrometheusAuthority = None
    since_s: Annotated[float, Flag("How far back use is read.", name="since", kind=Kind.SPAN)] = 86400.0
    interval_s: Annotated[float, Flag("How often changes are looked for.", name="look", kind=Kind.SPAN)] = 300.0
    most_open: Annotated[int, Flag("Workloads that are changed at a time, in the whole cluster.")] = 2
    tolerance: Annotated[float, Flag("Slower by less than this share is not slower.")] = 0.03
    workload_mode: WorkloadMode = ""

    def settings(self) -> "ProcessSettings":
        from dataclasses import replace

        from kopt.controllers.rightsizing.main import ProcessSettings
        from kopt.controllers.rightsizing.reconciler import RightsizingSettings

        if self.since_s < _SHORTEST_S:
            refuse("less than an hour says nothing about what a workload needs", "--since")
        if self.interval_s < 1:
            refuse("changes are looked for once a second at most", "--look")
        if self.most_open < 1:
            refuse("at least one workload; to change none, leave the mode at observe", "--most-open")
        if not 0.005 <= self.tolerance <= 0.5:
            refuse("a share from 0.005 to 0.5", "--tolerance")
        defaults = RightsizingSettings()
        controller = replace(
            defaults,
            mode=self.mode,
            most_open=self.most_open,
            interval_s=self.interval_s,
            watch=replace(defaults.watch, tolerance=self.tolerance),
            workload_may_lower=may_lower(self.workload_mode),
        )
        return ProcessSettings(
            controller=controller,
            prometheus=self.prometheus,
            token_file=self.token_file,
            certificate_authority=self.certificate_authority,
            since_s=int(self.since_s),
            **self.replica,
        )
