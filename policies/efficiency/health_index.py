"""Where a cluster's GPU-hours went, and its health index: availability x service x computing, as overall equipment
effectiveness multiplies availability, performance and quality (Nakajima, *Introduction to TPM*, 1988).
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from kopt.core.workload.gpu_hours import ClusterStep

FORMULA = (
    "health index = 100 x available x served x computing; "
    "available = 1 - unavailable / installed, "
    "served = allocated / (allocated + free while work waits), "
    "computing = used / measured"
)


@dataclass(frozen=True)
class Spent:
    """GPU-hours by what became of them; each belongs to one kind, and all of them together are ``installed``.

    ``unavailable``: broken, or of nodes that are cordoned or not ready, and free. ``free``: nothing waited for them.
    ``free_while_pending``: there was work for them, which did not fit or may not have them. ``unmeasured``: held, and
    nothing says how busy. ``unused``: held, and no kernel ran. ``used``: a kernel ran.
    """

    unavailable: float = 0.0
    free: float = 0.0
    free_while_pending: float = 0.0
    unmeasured: float = 0.0
    unused: float = 0.0
    used: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def allocated(self) -> float:
        return self.unmeasured + self.unused + self.used

    @property
    def installed(self) -> float:
        return self.unavailable + self.free + self.free_while_pending + self.allocated

    @property
    def by_name(self) -> dict[str, float]:
        """By what people call each kind, best first."""
        return {
            "used": self.used,
            "held and unused": self.unused,
            "held and not measured": self.unmeasured,
            "free while work waited": self.free_while_pending,
            "free": self.free,
            "unavailable": self.unavailable,
        }

    def document(self) -> dict[str, float]:
        """For programs."""
        return {each.name: round(getattr(self, each.name), 3) for each in fields(self)}


@dataclass(frozen=True)
class HealthIndex:
    """Each factor is 0 to 1; ``computing`` is None where nothing was measured, and so is the index."""

    available: float
    served: float
    computing: float | None

    @property
    def index(self) -> float | None:
        """0 to 100. 100: every GPU can be used, no work waits beside a free GPU, and all that are held compute."""
        return None if self.computing is None else 100 * self.available * self.served * self.computing


def spent(steps: Iterable[ClusterStep], step_h: float) -> Spent:
    """GPU-hours of steps that are ``step_h`` hours long. Demand counts by step: work that waits by day is not met by
    GPUs that are free at night."""
    total = Spent()
    for step in steps:
        total += _spent(step, step_h)
    return total


def _spent(step: ClusterStep, step_h: float) -> Spent:
    allocated = step.allocated
    # Pods go on on a node that is cordoned: what they hold is in use, not unavailable.
    usable = max(step.available, allocated)
    free = usable - allocated
    wanted = min(free, max(0.0, step.requested - allocated))
    # Several pods may share a GPU, and scrapes see pods come and go at other times than the API server does.
    measured = min(step.measured, allocated)
    used = measured * min(1.0, step.used / step.measured) if step.measured > 0 else 0.0
    gpus = (max(0.0, step.installed - usable), free - wanted, wanted, allocated - measured, measured - used, used)
    return Spent(*(each * step_h for each in gpus))


def health_index(total: Spent) -> HealthIndex | None:
    """None where no GPU was seen."""
    if total.installed <= 0:
        return None
    served = total.allocated + total.free_while_pending
    measured = total.used + total.unused
    return HealthIndex(
        1 - total.unavailable / total.installed,
        total.allocated / served if served > 0 else 1.0,
        total.used / measured if measured > 0 else None,
    )
