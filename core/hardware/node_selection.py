"""How much each part of a node's score counts: what a ``NodeSelectionPolicy`` says, and the nodes' measured use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 300.0, 7 * 86_400.0
LARGEST_WEIGHT = 1000.0
"""GPUs; no node has more."""


@dataclass(frozen=True)
class SelectionWeights:
    """How many GPUs of room a whole unit of each part is worth. The defaults are what counts without a policy.

    ``utilisation_history``: the share of the node's GPUs that was idle, over a window. ``health``: the score of the
    node's health. ``topology``: how well the free GPUs keep the topology that a pod prefers. ``distribution``: that no
    other replica of the pod's service is on the node.
    Raises ValueError for a weight that is negative or larger than `LARGEST_WEIGHT`, and where all are 0.
    """

    utilisation_history: float = 0.0
    health: float = 8.0
    topology: float = 2.0
    distribution: float = 0.5

    def __post_init__(self) -> None:
        for name, weight in self.by_field().items():
            if not 0 <= weight <= LARGEST_WEIGHT:
                raise ValueError(f"spec.weights.{name} is {weight:g}; a weight is 0 to {LARGEST_WEIGHT:g} GPUs")
        if not any(self.by_field().values()):
            raise ValueError(
                "all of spec.weights are 0, so that nothing would be weighed: give one of them a weight, or delete the "
                "policy to go back to the defaults"
            )

    def by_field(self) -> Mapping[str, float]:
        """By the names of the fields in the object."""
        return {
            "utilisationHistory": self.utilisation_history,
            "health": self.health,
            "topology": self.topology,
            "distribution": self.distribution,
        }


@dataclass(frozen=True)
class NodeSelectionPolicy:
    """``window_s``: over how long use is averaged."""

    name: str
    weights: SelectionWeights = SelectionWeights()
    window_s: float = 3600.0


@dataclass(frozen=True)
class UtilisationHistory:
    """The mean share of each node's GPUs that computed over a window, 0-1, by node."""

    window_s: float = 3600.0
    of: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def usual(self) -> float:
        """The mean of all nodes that are measured: what a node without measurements is assumed to have, so that it is
        neither preferred nor avoided for that."""
        return sum(self.of.values()) / len(self.of) if self.of else 0.0

    def get(self, node: str) -> float:
        return self.of.get(node, self.usual)
