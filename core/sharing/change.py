"""A change of how a node's device plugin shares its GPUs, as it is recorded on the node before anything is written."""

from dataclasses import dataclass
from enum import StrEnum

from kopt.core.sharing.modes import SharingMode


class ChangeOutcome(StrEnum):
    """``OPEN``: under way, or left by a process that was killed; ``UNDOING``: being taken back, or left so."""

    OPEN = "open"
    UNDOING = "undoing"
    APPLIED = "applied"
    UNDONE = "undone"


UNFINISHED = (ChangeOutcome.OPEN, ChangeOutcome.UNDOING)


@dataclass(frozen=True)
class ReplicaState:
    """``label``: the configuration that the node's label names, None without the label. ``replicas``: of each GPU."""

    label: str | None
    mode: SharingMode
    replicas: int = 1

    def __str__(self) -> str:
        return str(self.mode) if self.replicas < 2 else f"{self.mode} x {self.replicas}"


@dataclass(frozen=True)
class SharingChange:
    """``gpus``: physical ones. ``config_map``: namespace and name of the plugin's configurations. ``was_cordoned``: by
    somebody else, before it began."""

    before: ReplicaState
    after: ReplicaState
    gpus: int
    config_map: tuple[str, str]
    was_cordoned: bool
    at_s: float
    outcome: ChangeOutcome = ChangeOutcome.OPEN
    ended_s: float | None = None
    reason: str = ""

    @property
    def goal(self) -> ReplicaState:
        """Where the node is to get: back where it is taken back."""
        return self.after if self.outcome in (ChangeOutcome.OPEN, ChangeOutcome.APPLIED) else self.before
