"""Why a workload does not start, the smallest changes that would let it, and when it will.

In: a ``situation.Situation``: the fleet as the scheduler extender keeps it (``policies.placement``), quota as Kueue
counts it (``policies.quota``) or limits of queues, and the rules that keep pods off nodes. Out: causes, changes, times
(``core.scheduling.diagnosis``). What fits is decided by the functions that place pods and assign quota elsewhere; a
change is listed only if the workload fits with it.
"""

from kopt.policies.diagnosis.binding import binding_constraints
from kopt.policies.diagnosis.changes import smallest_changes
from kopt.policies.diagnosis.fitting import fits
from kopt.policies.diagnosis.queue_model import NodeRoom, QueuedGpus, QueueModel, RunningGpus
from kopt.policies.diagnosis.run_time_columns import RunTimeColumns
from kopt.policies.diagnosis.situation import (
    Ceiling,
    KueueSide,
    NodeLimit,
    PodShape,
    Rule,
    RunningWorkload,
    Situation,
)
from kopt.policies.diagnosis.start_calibration import StartCalibration
from kopt.policies.diagnosis.start_times import start_times

__all__ = [
    "Ceiling",
    "KueueSide",
    "NodeLimit",
    "NodeRoom",
    "PodShape",
    "QueueModel",
    "QueuedGpus",
    "Rule",
    "RunTimeColumns",
    "RunningGpus",
    "RunningWorkload",
    "Situation",
    "StartCalibration",
    "binding_constraints",
    "fits",
    "smallest_changes",
    "start_times",
]
