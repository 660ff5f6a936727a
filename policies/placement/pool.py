"""The nodes with one GPU resource, and which of them the scheduler names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.state import FleetState
from kopt.policies.placement.typical import TypicalPods

Ints = NDArray[np.int64]
_CACHED_LISTS = 16


class NamedNodes(Protocol):
    """A list of nodes; equal lists have equal ``raw`` bytes."""

    raw: bytes

    @property
    def count(self) -> int:
        """How many nodes are named."""

    def has(self, name: str) -> bool:
        """Whether a node is among them."""

    @property
    def names(self) -> Sequence[str]:
        """Decoded on first use."""


@dataclass
class Pool:
    """All nodes with one GPU resource. ``members`` rises when a node joins or leaves."""

    resource: str
    state: FleetState = field(default_factory=FleetState)
    cache: FragmentationCache = field(default_factory=lambda: FragmentationCache(TypicalPods({})))
    members: int = 0
    rows_by_names: dict[bytes, tuple[int, Ints]] = field(default_factory=dict)

    def rows(self, names: NamedNodes) -> Ints:
        """Rows of the named nodes that have this resource. The scheduler may send the same list for pod after pod;
        looking up 12,500 names takes 2 ms."""
        result = self.rows_by_names.get(names.raw)
        if result is not None and result[0] == self.members:
            return result[1]
        requested = names.names
        # All in C: with 12,500 names a loop in Python would be half of the decision.
        rows = np.fromiter(map(self.state.index.get, requested, repeat(-1)), np.int64, len(requested))
        rows = rows[rows >= 0]
        self.rows_by_names.pop(names.raw, None)
        self.rows_by_names[names.raw] = (self.members, rows)
        if len(self.rows_by_names) > _CACHED_LISTS:
            del self.rows_by_names[next(iter(self.rows_by_names))]
        return rows
