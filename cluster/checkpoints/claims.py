"""What a pod's user may say of its checkpoints beside the log agent, and for how long that protects it.

``kaiwo.ai/checkpoint-state`` and ``kaiwo.ai/last-checkpoint-time`` are open to users; the admission policy of the
chart keeps all others to the agent. The agent writes state and safety in one patch and never calls a write safe, so
that a write on a pod that is called safe is its user's claim. It is believed for as long as a long write lasts; then
the agent's report counts again, and the loss is not another workload's.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from kopt.cluster.checkpoints.status import STATE
from kopt.cluster.objects.custom.checkpoint import claims_write
from kopt.cluster.workloads.kueue.objects import GpuPod
from kopt.core.workload.checkpoint import JobState

LONGEST_CLAIM_S = 900.0


def is_claim(annotations: Mapping[str, str]) -> bool:
    """Whether a pod's user says that it writes, and the log agent that it is safe."""
    return claims_write(annotations)


class Claims:
    """Since when pods claim that they write. Of this process: a new leader believes a claim once more."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def see(self, old: GpuPod | None, new: GpuPod | None) -> None:
        """A pod changed; every version is to be seen, as the agent's and its user's may alternate."""
        if new is None and old is not None:
            self._since_s.pop(old.uid, None)
        elif new is not None and is_claim(new.annotations):
            self._since_s.setdefault(new.uid, self._clock())
        elif new is not None and self._clock() - self._since_s.get(new.uid, 0.0) > 2 * LONGEST_CLAIM_S:
            self._since_s.pop(new.uid, None)

    def settled(self, pod: GpuPod) -> GpuPod:
        """The pod without a claim that has lasted for too long."""
        since_s = self._since_s.get(pod.uid)
        if since_s is None or not is_claim(pod.annotations) or self._clock() - since_s <= LONGEST_CLAIM_S:
            return pod
        return replace(pod, annotations={**pod.annotations, STATE: JobState.TRAIN.value})
