"""How a workload's GPUs are divided into replicas: shapes, what each would cost, and which was selected."""

from dataclasses import dataclass
from typing import Any

from kopt.core.reason import Reason

MAX_GPUS = 100_000


@dataclass(frozen=True)
class NodeGpus:
    """A node: whole GPUs that it has, and those of them that are free. Raises ValueError for other amounts."""

    name: str
    gpus: int
    free: int

    def __post_init__(self) -> None:
        if not 0 <= self.free <= self.gpus <= MAX_GPUS:
            raise ValueError(f"node {self.name!r}: {self.free} of {self.gpus} GPUs are free, which cannot be")


@dataclass(frozen=True, order=True)
class Shape:
    """``replicas`` pods with ``gpus`` GPUs each, on one node each."""

    replicas: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.replicas} × {self.gpus}"

    @property
    def total(self) -> int:
        return self.replicas * self.gpus


@dataclass(frozen=True)
class ShapeEstimate:
    """What a shape would cost. None: not known.

    ``wait_seconds`` and ``wait_high_seconds`` are p50 and p90 of the time until all replicas have GPUs; 0 where they
    fit now. ``slowdown`` is the step's time over that of the fastest shape; ``step_seconds`` where a model was named.
    ``stranded_gpus``: free GPUs that the usual pods could no longer use. ``score_seconds``: wait, run and what
    stranded GPUs cost. ``reason``: why it was selected or rejected.
    """

    shape: Shape
    fits_now: bool
    reason: Reason
    wait_seconds: float | None = None
    wait_high_seconds: float | None = None
    slowdown: float | None = None
    step_seconds: float | None = None
    stranded_gpus: float | None = None
    score_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        names = [name for name in self.__dataclass_fields__ if name not in ("shape", "reason")]
        result: dict[str, Any] = {"replicas": self.shape.replicas, "gpus_per_replica": self.shape.gpus}
        return result | {name: getattr(self, name) for name in names} | {"reason": self.reason.to_dict()}


@dataclass(frozen=True)
class ReplicaAdvice:
    """``selected`` is None where no shape can ever run; ``rejected`` have the nearest to it first.
    ``by_smallest_node``: the shape of ceil(total / GPUs of the smallest node), for comparison."""

    gpus: int
    selected: ShapeEstimate | None
    rejected: tuple[ShapeEstimate, ...]
    by_smallest_node: Shape
    run_seconds: float
    reasons: tuple[Reason, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt replicas -o json``."""
        smallest = {"replicas": self.by_smallest_node.replicas, "gpus_per_replica": self.by_smallest_node.gpus}
        return {
            "gpus": self.gpus,
            "run_seconds": self.run_seconds,
            "selected": None if self.selected is None else self.selected.to_dict(),
            "rejected": [each.to_dict() for each in self.rejected],
            "by_smallest_node": smallest,
            "reasons": [reason.to_dict() for reason in self.reasons],
        }
