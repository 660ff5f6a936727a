"""What the meter has recorded, as its reader may see it: whoever may list the pods of a namespace sees their costs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.dashboard.data.access import ALL_NAMESPACES, Holds, pods_in
from kopt.dashboard.data.costs import Costs, Recorded
from kopt.dashboard.data.feed import Connections, Feed
from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.report import CostQuestion
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.contract.checkpoint_answers import epochs_by_source

EpochsOf = Callable[[str], Awaitable[Mapping[str, Sequence[Epoch]]]]
"""Epochs of a job, ``namespace/name``, by source, as the endpoint has read them. Raises ``feed.FAILURES``."""


class HiddenError(Exception):
    """A namespace that the reader may not list the pods of, or of which nothing is recorded: both look alike."""


@dataclass(frozen=True)
class CostState:
    """``costs`` is None where the pages know no database of a meter. ``visible``: the namespaces that may be asked
    about; None is all, and idleness and nodes with them. ``epochs_of`` is asked about their jobs alone."""

    costs: Costs | None = None
    recorded: Recorded = Recorded(frozenset(), None)
    problem: str = ""
    visible: frozenset[str] | None = None
    epochs_of: EpochsOf | None = None

    @property
    def namespaces(self) -> frozenset[str]:
        """That its reader may ask about."""
        return self.recorded.namespaces if self.visible is None else self.visible

    def within_rights(self, question: CostQuestion, namespace: str = "") -> CostQuestion:
        """The question about what may be seen, or about one namespace of it. Raises HiddenError."""
        if not namespace:
            return replace(question, namespaces=self.visible)
        if self.visible is not None and namespace not in self.visible:
            raise HiddenError(namespace)
        return replace(question, namespaces=frozenset({namespace}))


class _Reader:
    def __init__(self, connections: Connections) -> None:
        self._costs: Costs | None = connections.records.costs
        self._connections = connections
        self._latest = CostState(self._costs, epochs_of=self._epochs_of)

    async def refresh(self) -> None:
        if self._costs is None:
            return
        try:
            recorded = await asyncio.to_thread(self._costs.recorded)
            self._latest = CostState(self._costs, recorded, epochs_of=self._epochs_of)
        except DatabaseError as error:
            self._latest = replace(self._latest, problem=f"{error}")

    async def latest(self) -> CostState:
        return self._latest

    async def _epochs_of(self, job: str) -> Mapping[str, Sequence[Epoch]]:
        # Old epochs are not worth a page that waits.
        answer = await self._connections.client.jobs(job, deadline_s=self._connections.patience_s)
        return epochs_by_source(answer)


def _restrict(state: CostState, holds: Holds) -> CostState:
    """Every right is asked for, so that all of them are looked up at once."""
    visible = frozenset(name for name in state.recorded.namespaces if holds(pods_in(name)))
    return state if holds(pods_in(ALL_NAMESPACES)) else replace(state, visible=visible)


COSTS: Feed[CostState] = Feed("costs", CostState, _Reader, _restrict)
