"""What a container may use of CPU and memory, what it used, how many workers a job has, and changes while they run."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from kopt.core.units import MIB


class Lever(StrEnum):
    """What is changed of a running container; one at a time. Amounts are milli-CPU, or bytes."""

    CPU = "cpu"
    MEMORY = "memory"

    def text(self, amount: int | None) -> str:
        """As a Kubernetes quantity; empty for None."""
        if amount is None:
            return ""
        if self is Lever.CPU:
            return f"{amount}m" if amount % 1000 else str(amount // 1000)
        return str(amount) if amount % MIB else f"{amount // MIB}Mi"


class QosClass(StrEnum):
    """Of a pod (https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/); a resize may not change it."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Request and limit of one resource, in milli-CPU or bytes; None where it is not set."""

    request: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """``restarts_for``: levers for which its ``resizePolicy`` restarts it. ``resizable``: no init container."""

    name: str
    cpu: Bounds = Bounds()
    memory: Bounds = Bounds()
    restarts_for: frozenset[Lever] = frozenset()
    resizable: bool = True

    def of(self, lever: Lever) -> Bounds:
        return self.cpu if lever is Lever.CPU else self.memory


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """Measured over ``measured_s`` seconds: CPU in milli-CPU, as rates over minutes; memory as its working set."""

    cpu_p95: float
    cpu_max: float
    memory_max_bytes: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of one resource of one container, of every pod of a workload."""

    container: str
    lever: Lever
    before: Bounds
    after: Bounds

    @property
    def freed(self) -> int:
        """Of the request, by pod; negative where it grows."""
        return (self.before.request or 0) - (self.after.request or 0)

    @property
    def subject(self) -> str:
        """What is changed, whatever the amounts."""
        return f"{self.lever} of {self.container}"

    @property
    def undone(self) -> "Resize":
        """The change back."""
        return Resize(self.container, self.lever, self.after, self.before)

    @property
    def text(self) -> str:
        """``cpu of main: request 8 to 4, limit 8 to 4``."""
        bounds = (
            ("request", self.before.request, self.after.request),
            ("limit", self.before.limit, self.after.limit),
        )
        parts = [f"{name} {self.lever.text(old)} to {self.lever.text(new)}" for name, old, new in bounds if old != new]
        return f"{self.subject}: {', '.join(parts)}"


class Batch(StrEnum):
    """What becomes of the samples of a step when a job has another width."""

    FIXED = "fixed"
    """All workers together do as many as before."""
    PER_WORKER = "per-worker"
    """Each worker does as many as before."""


@dataclass(frozen=True, slots=True)
class WidthChange:
    """A change of how many workers (pods) an elastic job has. It restarts their work from the last checkpoint."""

    before: int
    after: int
    batch: Batch

    @property
    def subject(self) -> str:
        return "width"

    @property
    def undone(self) -> "WidthChange":
        """The change back."""
        return WidthChange(self.after, self.before, self.batch)

    @property
    def text(self) -> str:
        """``width: 4 to 3 workers``."""
        return f"width: {self.before} to {self.after} workers"


Change = Resize | WidthChange
C = TypeVar("C", Resize, WidthChange)


class Outcome(StrEnum):
    """``OPEN``: applied, or about to be, and nothing decided yet."""

    OPEN = "open"
    KEPT = "kept"
    UNDONE = "undone"


@dataclass(frozen=True)
class ChangeRecord(Generic[C]):
    """One entry of the history of a pod, or of a job; times are Unix seconds. ``step_seconds``: of a step before and
    after the change, where both were measured: how a job scales by its own runs."""

    resize: C
    at_s: float
    outcome: Outcome = Outcome.OPEN
    ended_s: float | None = None
    reason: str = ""
    step_seconds: tuple[float, float] | None = None


ResizeRecord = ChangeRecord[Resize]
WidthRecord = ChangeRecord[WidthChange]
AnyRecord = ResizeRecord | WidthRecord
