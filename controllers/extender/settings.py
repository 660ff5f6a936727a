"""How the extender decides."""

from dataclasses import dataclass

from kopt.core.decision import Mode
from kopt.policies.placement.choose import RUNNER_UPS


@dataclass(frozen=True)
class ExtenderSettings:
    """Times in seconds. Raises ValueError for values out of range."""

    mode: Mode = Mode.OBSERVE
    """Of pods whose namespace names none either; only ``enforce`` narrows the scheduler's choice, otherwise decisions
    are recorded and nothing else."""
    rollout_percent: int = 100
    """Of the workloads at most, whatever the cluster's switch says; the others are observed. Which ones follows from
    the name of the pod's owner."""
    shortlist: int = 1
    """Nodes that filter leaves: the winner and its runners-up. With one the scheduler scores nothing itself."""
    reserve_s: float = 60.0
    """A node that was named and not bound is free again after this long; longer than volumes take to bind."""
    assume_s: float = 30.0
    """A Binding that is not seen on the pod after this long is looked up."""
    most_binding: int = 4
    """Bindings under way at once before the scheduler is held up; see `Binds.room`."""
    workload_may_lower: bool | None = None
    """Whether a pod may ask for less than its namespace, as ``workloadMode`` of the policy says; None: not where that
    says enforce."""
    joint: int = 0
    """Waiting pods that are planned together; with 0 each by itself."""

    def __post_init__(self) -> None:
        if not 0 <= self.rollout_percent <= 100 or not 1 <= self.shortlist <= 1 + RUNNER_UPS:
            raise ValueError(f"a rollout is 0 to 100 %, a shortlist 1 to {1 + RUNNER_UPS} nodes")
        if min(self.reserve_s, self.assume_s) <= 0:
            raise ValueError("a reservation lasts for more than 0 s")
        if self.joint < 0 or self.most_binding < 1:
            raise ValueError("pods planned together are 0 or more, Bindings under way 1 or more")
