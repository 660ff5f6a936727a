"""A workload as it is submitted: what the rules about queues and schedulers look at."""

from dataclasses import dataclass
from enum import StrEnum

from kopt.core.scheduling.workload_class import ClassPlacement, WorkloadClass
from kopt.core.units import MilliGpu

DEFAULT_SCHEDULER = "default-scheduler"


class Framework(StrEnum):
    """The queueing system that workloads are labelled for."""

    KUEUE = "Kueue"
    VOLCANO = "Volcano"
    KAI = "KAI"


@dataclass(frozen=True)
class Submission:
    """What the rules look at. ``gpus`` is the sum over the workload's pods; ``queue`` its own label, if any.

    ``groups`` are those of the user who creates it, empty where that is not known.
    """

    kind: str
    namespace: str
    name: str
    gpus: MilliGpu
    queue: str = ""
    namespace_queue: str = ""
    priority_class: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkloadShape:
    """A workload as a scheduler sees it. ``pods`` are all its pods at full size, ``gpus`` their sum.

    ``scheduler`` is the name that is written, empty for none; ``settable`` is False where the kind has no field for
    one; ``spreads`` where topology spread constraints are written. ``placement`` is that of its class.
    """

    kind: str
    role: WorkloadClass
    pods: int
    gpus: MilliGpu
    scheduler: str = ""
    settable: bool = True
    spreads: bool = False
    placement: ClassPlacement = ClassPlacement.PACK
