"""The options of ``kopt controller staging``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, WorkloadMode, may_lower, refuse
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.staging.main import ProcessSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Stage the data that workloads need before they hold GPUs, and keep them out of their queue until it is complete.

    A workload names its data by annotation, kaiwo.ai/staged-data: NAME or kaiwo.ai/stage: "SOURCE -> pvc://CLAIM/PATH",
    in namespaces with kaiwo.ai/managed: "true". Jobs without GPUs run `kopt stage`. With annotate, data is staged and
    no workload is held. `kopt off` releases what is held.

    Examples:

        kopt controller staging --image registry.example.com/kopt-staging:0.2.0 --mode enforce
    """

    image: Annotated[str, Flag("The image kopt-staging, which downloads.")]
    mode: Annotated[Mode, Flag("Default mode; annotate stages data, enforce also holds workloads.")] = Mode.OBSERVE
    at_once: Annotated[int, Flag("Maximum number of concurrent downloads.", minimum=1)] = 8
    per_namespace: Annotated[int, Flag("The same for each namespace; 0: one less than --at-once.", minimum=0)] = 0
    stalled_s: Annotated[
        float, Flag("A download without progress for this long gives way to others.", name="stalled", kind=Kind.SPAN)
    ] = 15 * 60.0
    longest_s: Annotated[
        float, Flag("Longest turn while others wait, or without a readable log.", name="longest", kind=Kind.SPAN)
    ] = 12 * 3600.0
    cache_path: Annotated[str, Flag("Folder on nodes for their copies.")] = "/var/lib/kopt-cache"
    node_budget_bytes: Annotated[
        int | None, Flag("Disk space of a node that copies may use.", name="node-budget", kind=Kind.SIZE)
    ] = None
    keep_unused_s: Annotated[
        float | None,
        Flag("Copies unused for this long are deleted; empty: none.", name="keep-unused", kind=Kind.SPAN),
    ] = None
    slow_retry_s: Annotated[
        float, Flag("Wait after a failure that needs a person to fix it.", name="slow-retry", kind=Kind.SPAN)
    ] = 600.0
    cpu: Annotated[str, Flag("CPU request of a download.")] = "500m"
    memory: Annotated[str, Flag("Memory request of a download.")] = "256Mi"
    memory_limit: Annotated[str, Flag("Memory limit of a download.")] = "2Gi"
    priority_class: Annotated[str, Flag("PriorityClass of downloads; empty: the cluster's default.")] = ""
    queue: Annotated[str, Flag("LocalQueue of downloads, where every Job needs one.")] = ""
    read_logs: Annotated[bool, Flag("Read progress from the logs of downloads.")] = True
    workload_mode: WorkloadMode = ""

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.staging.main import ProcessSettings
        from kopt.controllers.staging.ports import StagingSettings
        from kopt.policies.staging.pod import PodSettings
        from kopt.policies.staging.rules import StagingRules

        cache = self.cache_path.rstrip("/")
        if not cache.startswith("/"):
            refuse("the path of a folder that is not the root", "--cache-path")
        try:
            rules = StagingRules(
                at_once=self.at_once,
                node_budget_bytes=self.node_budget_bytes,
                per_namespace=self.per_namespace,
                stalled_s=self.stalled_s,
                longest_s=self.longest_s,
                slow_pause_s=self.slow_retry_s,
                keep_unused_s=self.keep_unused_s,
            )
        except ValueError as error:
            refuse(str(error), "--slow-retry")
        pods = PodSettings(self.image, cache, self.cpu, self.memory, self.memory_limit, self.priority_class, self.queue)
        staging = StagingSettings(pods, self.mode, rules, workload_may_lower=may_lower(self.workload_mode))
        return ProcessSettings(staging=staging, reads_logs=self.read_logs, **self.replica)
