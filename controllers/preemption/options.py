"""The options of ``kopt controller preemption``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, WorkloadMode, may_lower, refuse
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.preemption.main import ProcessSettings
    from kopt.controllers.preemption.workload_hold import HoldSettings


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Make Kueue preempt the workloads that lose the least work, never one that is writing a checkpoint.

    `kopt agent logtail` reports what running jobs would lose. With enforce, and only in namespaces with
    kaiwo.ai/managed: "true", a Workload that needs to preempt others is held for at most --budget. Then all workloads
    but the selected victims get a higher priority until Kueue has evicted the victims, for at most --cover. After that
    Kueue's own rules apply. Enforce needs --service or --url. `kopt off` restores every priority and releases what is
    held. Jobs whose pods say kaiwo.ai/saves-on-request: "true" are asked to save first, within --budget.

    With --plain-pods it also makes room for pods that wait under kube-scheduler outside of a queue, if their
    PriorityClass has preemptionPolicy: Never: the selected gang is evicted as a whole, and nothing else.

    With --kai new pods of KAI's queues that KAI would preempt for are held by a scheduling gate, for at most --budget:
    the selected gang of their queue is evicted as a whole, and KAI gives them its room.

    Examples:

        kopt controller preemption --kubeconfig admin.conf --mode annotate
    """

    mode: Annotated[Mode, Flag("Default mode of workloads and namespaces.")] = Mode.OBSERVE
    budget_s: Annotated[
        float, Flag("How long a workload may wait for a better moment.", name="budget", kind=Kind.SPAN)
    ] = 300.0
    shield_s: Annotated[float, Flag("Time Kueue has to evict the selected victims.", name="cover", kind=Kind.SPAN)] = (
        60.0
    )
    plain_pods: Annotated[
        bool, Flag("Also for plain pods whose class has preemptionPolicy: Never.", is_switch=True)
    ] = False
    kai: Annotated[bool, Flag("Also for pods of KAI's queues, ahead of KAI's own rule.", is_switch=True)] = False
    service: Annotated[str, Flag("Service by which the API server reaches the reviews.")] = ""
    url: Annotated[str, Flag("URL of the reviews outside a cluster.", metavar="HTTPS_URL")] = ""
    review_port: Annotated[int, Flag("Port of the reviews.")] = 9453
    client_ca: Annotated[
        Path | None, Flag("Accept reviews only from callers with a certificate of this CA.", metavar="FILE")
    ] = None
    workload_mode: WorkloadMode = ""

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.preemption.main import ProcessSettings
        from kopt.controllers.preemption.ports import ControllerSettings

        if self.mode == Mode.ENFORCE and not (self.service or self.url):
            refuse("enforce holds new Workloads, which needs --service or --url", "--mode")
        controller = ControllerSettings(
            self.mode,
            self.budget_s,
            max(1.0, self.shield_s),
            workload_may_lower=may_lower(self.workload_mode),
        )
        return ProcessSettings(
            controller=controller, hold=self._hold(), plain_pods=self.plain_pods, kai=self.kai, **self.replica
        )

    def _hold(self) -> "HoldSettings | None":
        from urllib.parse import urlsplit

        from kopt.cluster.admission.address import Address
        from kopt.controllers.preemption.workload_hold import HoldSettings

        if not (self.service or self.url):
            return None
        if self.url and not self.url.startswith("https://"):
            refuse("the API server calls https:// only", "--url")
        names = (urlsplit(self.url).hostname or "",) if self.url else (f"{self.service}.{self.namespace}.svc",)
        address = Address(self.namespace, self.service, url=self.url)
        return HoldSettings(address, names, self.host, self.review_port, self.client_ca)
