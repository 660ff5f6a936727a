"""The options of ``kopt controller queues``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, PrometheusAuthority, PrometheusToken, refuse
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import DEFAULT_GPU_RESOURCE, Engine

if TYPE_CHECKING:
    from kopt.controllers.queues.main import ProcessSettings

_DAY_S, _MOST_DAYS = 86_400, 180


@dataclass(frozen=True, kw_only=True)
class Options(ControllerOptions):
    """Carry out the KaiwoQueues of a cluster, and say in their status what the engine cannot express.

    With --mode observe or annotate only the status is written, with what would change; with enforce the engine's
    queues too, by server-side apply. Fields of others are never taken, and queues with workloads are never deleted.

    With --order and enforce the Workloads of Kueue's queues that wait get a priority by their class, their age and
    their GPUs, where nothing is evicted by priority. `kopt off`, or leaving it out, gives them their own back.

    With --prometheus the status says which quotas would fit what the queues demanded; none is written.

    Examples:

        kopt controller queues --engine kueue --mode enforce --kubeconfig admin.conf

        kopt controller queues --mode enforce --order --order-per-hour 20
    """

    engine: Annotated[Engine, Flag("The queueing system of the cluster.")] = Engine.KUEUE
    mode: Annotated[Mode, Flag("Whether queues are written, or only what would be.")] = Mode.OBSERVE
    prune: Annotated[
        bool, Flag("Delete queues whose KaiwoQueue is gone, once no workload is in them.", is_switch=True)
    ] = False
    gpu_resource: Annotated[str, Flag("What gpu means in pools that no KaiwoPool describes.")] = DEFAULT_GPU_RESOURCE
    prometheus: Annotated[
        str, Flag("The Prometheus that scrapes this controller; empty: no quota is advised in the status.")
    ] = ""
    token_file: PrometheusToken = None
    certificate_authority: PrometheusAuthority = None
    advise_since_s: Annotated[
        float, Flag("With --prometheus: of how much history.", name="advise-since", kind=Kind.SPAN)
    ] = 28.0 * 86_400
    order: Annotated[
        bool, Flag("Order Kueue's workloads by class, age and GPUs, through their priority.", is_switch=True)
    ] = False
    order_per_hour: Annotated[float, Flag("With --order: points for an hour of age.")] = 10.0
    order_per_doubling: Annotated[float, Flag("With --order: points for twice the GPUs.")] = 5.0
    order_highest_class: Annotated[float, Flag("With --order: higher priorities count as this.")] = 1000.0

    def settings(self) -> "ProcessSettings":
        from kopt.controllers.queues.main import ProcessSettings
        from kopt.controllers.queues.reconciler import Carrying
        from kopt.policies.priority.queue_order import QueueOrder

        order = None
        if self.order:
            if self.engine is not Engine.KUEUE:
                refuse("only Kueue has a number by which each workload is ordered", "--order")
            try:
                order = QueueOrder(self.order_per_hour, self.order_per_doubling, self.order_highest_class)
            except ValueError as error:
                refuse(str(error), "--order-per-hour")
        carrying = Carrying(self.engine, self.mode, self.prune, self.gpu_resource)
        if not _DAY_S <= self.advise_since_s <= _MOST_DAYS * _DAY_S:
            refuse(f"quotas are advised from 1d to {_MOST_DAYS}d of history", "--advise-since")
        return ProcessSettings(
            carrying=carrying,
            order=order,
            prometheus=self.prometheus,
            token_file=self.token_file,
            certificate_authority=self.certificate_authority,
            advise_since_s=int(self.advise_since_s),
            **self.replica,
        )
