"""What the executor asks of a vendor's driver."""

from typing import Protocol

from kopt.core.node_plan.state import NodeState
from kopt.core.node_plan.steps import Step


class HardwareError(Exception):
    """The driver refused, or did not answer; the message has its own words."""


class Hardware(Protocol):
    """The GPUs of this node. Every method may block for seconds, and raises HardwareError."""

    def read(self) -> NodeState:
        """As the driver reports it now."""
        ...

    def users(self, step: Step) -> tuple[str, ...]:
        """Processes that hold what a step would change, for people; empty where there are none."""
        ...

    def apply(self, step: Step) -> None:
        """What a step did is told by ``read`` alone: drivers report success for changes that wait for a reset."""
        ...
