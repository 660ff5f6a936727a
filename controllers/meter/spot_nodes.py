"""Nodes of spot capacity that the meter has recorded, with the times in which pods held GPUs of them."""

from collections import defaultdict

from kopt.controllers.meter.store import CostStore, Window, offer_of
from kopt.core.cost.metering import Milliseconds
from kopt.policies.cost.interruptions import SpotNode


def spot_nodes(store: CostStore, window: Window) -> list[SpotNode]:
    """Those that were there in the window, one of each offer that a node has had; only the last of these can have been
    interrupted. Raises DatabaseError."""
    bounds = (window.start_ms, window.end_ms)
    busy: dict[tuple[str, str], list[tuple[Milliseconds, Milliseconds]]] = defaultdict(list)
    for uid, offer, start, end in store.database.query(
        "SELECT node_uid, offer, start_ms, end_ms FROM cost_segments WHERE end_ms > ? AND start_ms < ? "
        "AND offer LIKE '%|spot' AND subject NOT LIKE 'idle:%'",
        bounds,
    ):
        busy[str(uid), str(offer)].append((max(int(start), window.start_ms), min(int(end), window.end_ms)))
    rows = store.database.query(
        "SELECT node_uid, offer, MIN(start_ms), MAX(end_ms) FROM cost_capacities "
        "WHERE end_ms > ? AND start_ms < ? AND offer LIKE '%|spot' GROUP BY node_uid, offer",
        bounds,
    )
    ends: dict[str, Milliseconds] = {}
    for uid, _, _, end in rows:
        ends[str(uid)] = max(int(end), ends.get(str(uid), 0))
    return [
        SpotNode(
            offer_of(str(offer)),
            int(start),
            int(end) if int(end) == ends[str(uid)] < window.end_ms else None,
            busy[str(uid), str(offer)],
        )
        for uid, offer, start, end in rows
    ]
