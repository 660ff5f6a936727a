"""Where the pages read what the meter has recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kopt.core.cost.metering import Milliseconds
from kopt.core.cost.prices import Price
from kopt.policies.cost.report import CostEvent, CostQuestion, CostReport


@dataclass(frozen=True)
class Recorded:
    """What there is to ask about: namespaces of pods, until when was metered (None: never), and the price book.
    ``problem``: why it is not measured what pods held and did not use, while it should be."""

    namespaces: frozenset[str]
    metered_ms: Milliseconds | None
    prices: tuple[Price, ...] = ()
    problem: str = ""


class Costs(Protocol):
    """The meter's database. Methods block, and raise DatabaseError."""

    def recorded(self) -> Recorded: ...

    def report(self, question: CostQuestion) -> CostReport: ...

    def queue_use(
        self, start_ms: Milliseconds, step_ms: Milliseconds, steps: int
    ) -> Mapping[tuple[str, str], tuple[float | None, ...]]:
        """By LocalQueue, (namespace, name), mean milli-GPU of each step; None where nothing was recorded."""

    def events(self, question: CostQuestion, row: str) -> list[CostEvent]: ...
