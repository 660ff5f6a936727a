"""The events behind a row: segments, cut where a price changes."""

import itertools
from typing import TYPE_CHECKING

from kopt.cli.cost.reading import Source
from kopt.core.cost.metering import GPU_HOUR, idle_of
from kopt.core.units import WHOLE_GPU
from kopt.policies.cost.attribution import Grouping
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.invoice import Line, Usage, invoice

if TYPE_CHECKING:
    from kopt.cli.cost.commands import EventRow


def events_of(source: Source, lines: list[Line], grouping: Grouping) -> "list[EventRow]":
    """In the order of time; they sum to the lines."""
    from kopt.cli.cost.commands import EventRow

    wanted = {(line.usage.subject, line.usage.node_uid) for line in lines}
    window = source.window
    spans, usages = [], []
    for segment in source.store.segments(window, sorted({subject for subject, _ in wanted})):
        if (segment.subject, segment.node_uid) not in wanted:
            continue
        start_ms = max(segment.start_ms, window.start_ms)
        end_ms = min(segment.end_ms or window.end_ms, window.end_ms)
        dates = source.book.dates(start_ms, end_ms)
        for from_ms, until_ms in itertools.pairwise(dates):
            price = source.book.of(segment.offer, from_ms)
            used = segment.milli * (until_ms - from_ms)
            spans.append((segment, from_ms, until_ms))
            usages.append(Usage(segment.subject, segment.node_uid, segment.offer, price, used))
    return [
        EventRow(
            _who(segment.subject, grouping),
            grouping.nodes.get(segment.node_uid, segment.node_uid),
            stamp(from_ms),
            stamp(until_ms),
            segment.milli / WHOLE_GPU,
            line.usage.used / GPU_HOUR,
            None if line.usage.price is None else line.usage.price.micro_per_gpu_hour / 1_000_000,
            line.micro,
            "" if line.usage.price is None else line.usage.price.currency,
            "" if line.usage.price is None else line.usage.price.source,
        )
        for (segment, from_ms, until_ms), line in zip(spans, invoice(usages), strict=True)
    ]


def _who(subject: str, grouping: Grouping) -> str:
    idle, pod = idle_of(subject), grouping.attributes.get(subject)
    if idle is not None:
        return idle.value
    return f"{pod.namespace}/{pod.pod}" if pod is not None else subject
