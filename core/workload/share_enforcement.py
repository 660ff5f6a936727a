"""Executor by field: what each enforces, from the projects' own sources and their open defects.

* Dynamic resource allocation: kube-scheduler books capacity, and nothing limits a process. HAMi's driver for it does.
* HAMi and Volcano's vGPU plugin: a library in the container refuses allocations beyond the memory that was asked for,
  which is guarantee and limit in one; limits on compute are written and exceeded (HAMi#332, HAMi#786).
* MPS replicas of NVIDIA's device plugin: the daemon gives each client its part of memory and threads, and a client may
  be limited further by its environment, per process and not per container (k8s-device-plugin#594).
* KAI Scheduler 0.12 and time-slicing replicas: shares are counted, and nothing limits a process.

Shares of several GPUs are of different ones: HAMi counts physical GPUs with so much memory of each (``docs``),
Volcano's plugin cards, KAI devices (``gpu-fraction-num-devices``). A claim has to say that its devices differ. Replicas
of a device plugin may be of one GPU (README of v0.17, "requesting more than one shared GPU"), and with MPS the plugin
fails a request for more than one (``internal/rm/rm.go``).
"""

from collections.abc import Mapping

from kopt.core.workload.gpu_share import Enforcement, Isolation, ShareExecutor, ShareField

_YES, _WRITTEN, _NO = Enforcement.ENFORCED, Enforcement.NOT_ENFORCED, Enforcement.NOT_EXPRESSIBLE


def _row(fraction_limit: Enforcement, memory_limit: Enforcement) -> Mapping[ShareField, Enforcement]:
    """Guarantees are counted by every executor."""
    return dict(zip(ShareField, (_YES, _YES, fraction_limit, memory_limit), strict=True))


ENFORCED: Mapping[ShareExecutor, Mapping[ShareField, Enforcement]] = {
    ShareExecutor.DRA_HAMI: _row(_WRITTEN, _YES),
    ShareExecutor.DRA: _row(_NO, _NO),
    ShareExecutor.HAMI: _row(_WRITTEN, _YES),
    ShareExecutor.VOLCANO: _row(_WRITTEN, _YES),
    ShareExecutor.MPS: _row(_YES, _YES),
    ShareExecutor.KAI: _row(_NO, _NO),
    ShareExecutor.TIME_SLICING: _row(_NO, _NO),
}
SINGLE_FIGURE = frozenset({ShareExecutor.DRA_HAMI, ShareExecutor.HAMI, ShareExecutor.VOLCANO})
"""Executors for which guarantee and limit are one figure: no room to grow."""
_SLICED = frozenset({Isolation.NONE, Isolation.TIME_SLICING})
ISOLATIONS: Mapping[ShareExecutor, frozenset[Isolation]] = {
    executor: frozenset({Isolation.NONE, Isolation.MPS}) if executor is ShareExecutor.MPS else _SLICED
    for executor in ShareExecutor
}
"""Processes on one GPU take turns, unless MPS lets them run at once. Partitions are devices of their own."""
WHY_NOT_SEVERAL: Mapping[ShareExecutor, str] = {
    ShareExecutor.MPS: "the device plugin fails a request for more than one replica with MPS",
    ShareExecutor.TIME_SLICING: "several replicas may be of one GPU, and are no larger part of it",
}
"""Executors that cannot be asked for shares of several GPUs, and why."""


def limits_enforced(executor: ShareExecutor) -> int:
    """Of the two limits."""
    row = ENFORCED[executor]
    return sum(row[field] is _YES for field in (ShareField.FRACTION_LIMIT, ShareField.MEMORY_LIMIT))
