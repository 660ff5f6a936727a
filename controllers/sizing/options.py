"""The options of ``kopt controller sizing``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, WorkloadMode, may_lower, refuse
from kopt.core.decision import Mode
from kopt.core.workload.executor import Executor

if TYPE_CHECKING:
    from kopt.controllers.sizing.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Hold GPU Jobs of unknown size for a short dry run, write what they need, and release them.

    Holds only Jobs with kaiwo.ai/mode: enforce in namespaces with kaiwo.ai/managed: "true", never for longer than
    --budget; kaiwo.ai/profiling: "false" opts out. A Job that waits in a queue of Kueue is kept out of it meanwhile.
    `kopt off` gives everything back.

    Examples:

        kopt controller sizing --agent-image registry.example.com/kopt-agents:0.2.0 --mode enforce
    """

    agent_image: Annotated[str, Flag("The image kopt-agents, which brings the profiler into pods.")]
    mode: Annotated[Mode, Flag("Default mode of Jobs and namespaces; enforce holds Jobs.")] = Mode.OBSERVE
    duration_s: Annotated[float, Flag("Maximum duration of a dry run.", name="duration", kind=Kind.SPAN)] = 300.0
    interval: Annotated[float, Flag("Seconds between measurements of a dry run, at most 1.")] = 0.5
    budget_s: Annotated[float, Flag("Maximum time for which a Job is held.", name="budget", kind=Kind.SPAN)] = 1800.0
    priority_class: Annotated[str, Flag("PriorityClass of dry runs; empty: the cluster's default.")] = ""
    fractions: Annotated[bool, Flag("Give Jobs shares of a GPU, where KAI, HAMi or Volcano hand them out.")] = False
    executor: Annotated[
        Executor, Flag("What hands out shares of a GPU; unknown: what nodes and KAI's configuration show.")
    ] = Executor.UNKNOWN
    read_logs: Annotated[bool, Flag("Read the logs of failed pods for out-of-memory errors.")] = True
    secrets: Annotated[
        bool, Flag("Users may let dry runs have the Secrets and service account of their Jobs, by annotation.")
    ] = True
    host_paths: Annotated[
        str | None,
        Flag("Host folders, separated by commas, that dry runs may read; default: all of a Job's.", metavar="FOLDERS"),
    ] = None
    predictions: Annotated[str, Flag("Prediction endpoint; empty: sizes come from dry runs alone.")] = ""
    workload_mode: WorkloadMode = ""

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.sizing.main import ProcessSettings
        from kopt.controllers.sizing.ports import SizingSettings
        from kopt.policies.sizing.profiling import ProfilingSettings
        from kopt.policies.sizing.profiling_pod import DryRunSettings

        if not 0 < self.interval <= 1:
            refuse("a dry run is measured every second or more often", "--interval")
        try:
            policy = ProfilingSettings(duration_s=self.duration_s, budget_s=self.budget_s, fractions=self.fractions)
        except ValueError as error:
            refuse(str(error), "--budget")
        dry_run = DryRunSettings(
            self.agent_image,
            self.priority_class,
            self.duration_s,
            max(60.0, self.budget_s - self.duration_s),
            self.interval,
            allow_secrets=self.secrets,
            host_paths=self._folders(),
        )
        return ProcessSettings(
            sizing=SizingSettings(dry_run, policy, self.mode, workload_may_lower=may_lower(self.workload_mode)),
            sizing_url=self.predictions,
            reads_logs=self.read_logs,
            executor=self.executor,
            **self.replica,
        )

    def _folders(self) -> tuple[str, ...] | None:
        if self.host_paths is None:
            return None
        folders = tuple(filter(None, self.host_paths.split(",")))
        if any(not folder.startswith("/") or folder.endswith("/") for folder in folders):
            refuse("paths of folders that are not the root, without a slash at the end", "--host-paths")
        return folders
