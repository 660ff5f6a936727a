"""GPUs that each queue used over time, from what the meter has recorded."""

from collections.abc import Mapping

from kopt.controllers.meter.store import CostStore
from kopt.core.cost.metering import Milliseconds

LocalQueue = tuple[str, str]
"""(namespace, name)."""


def queue_use(
    store: CostStore, start_ms: Milliseconds, step_ms: Milliseconds, steps: int
) -> Mapping[LocalQueue, tuple[float | None, ...]]:
    """Mean milli-GPU of each step; None for what begins after the meter last saw anything. Blocks."""
    window = store.window(start_ms, start_ms + steps * step_ms)
    # A step that has only begun is the mean of what is known of it.
    metered_ms = [max(0, min(step_ms, window.end_ms - start_ms - step * step_ms)) for step in range(steps)]
    totals: dict[LocalQueue, list[float]] = {}
    rows = store.database.query(
        "SELECT namespace, queue, start_ms, end_ms, milli FROM cost_segments JOIN cost_pods ON uid = subject "
        "WHERE queue <> '' AND end_ms > ? AND start_ms < ?",
        (window.start_ms, window.end_ms),
    )
    for namespace, queue, began_ms, ended_ms, milli in rows:
        begin, end = max(int(began_ms), window.start_ms), min(int(ended_ms), window.end_ms)
        row = totals.setdefault((str(namespace), str(queue)), [0.0] * steps)
        for step in range((begin - start_ms) // step_ms, min(steps - 1, (end - 1 - start_ms) // step_ms) + 1):
            first = start_ms + step * step_ms
            row[step] += int(milli) * (min(end, first + step_ms) - max(begin, first))
    return {
        name: tuple(total / span_ms if span_ms else None for total, span_ms in zip(row, metered_ms, strict=True))
        for name, row in totals.items()
    }
