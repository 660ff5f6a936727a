"""The events behind a row, for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kopt.core.cost.metering import GPU_HOUR
from kopt.core.units import WHOLE_GPU
from kopt.policies.cost.budgets import stamp

if TYPE_CHECKING:
    from kopt.cli.cost.commands import EventRow
    from kopt.policies.cost.report import CostEvent


def event_rows(events: "Sequence[CostEvent]") -> "list[EventRow]":
    """In their order."""
    from kopt.cli.cost.commands import EventRow

    return [
        EventRow(
            event.who,
            event.node,
            stamp(event.start_ms),
            stamp(event.end_ms),
            event.milli / WHOLE_GPU,
            event.used / GPU_HOUR,
            None if event.price is None else event.price.micro_per_gpu_hour / 1_000_000,
            event.micro,
            "" if event.price is None else event.price.currency,
            "" if event.price is None else event.price.source,
        )
        for event in events
    ]
