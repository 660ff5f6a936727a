"""A real database of a meter with made-up pods, behind the pages' interface to it."""

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from kopt.controllers.meter.reports import CostReports
from kopt.controllers.meter.store import CostStore
from kopt.core.cost.metering import Attributes, Demand, Idle, MeteredNode, MeteredPod, Offer, Rule
from kopt.core.cost.prices import shipped_prices
from kopt.dashboard.data.costs import Recorded
from kopt.dashboard.pages.cost.data import CostState
from kopt.policies.cost import Meter, Observation, advance
from kopt.policies.cost.report import CostEvent, CostQuestion, CostReport
from kopt.serving.base.database.opening import Location

HOUR_MS = 3_600_000
OFFER, OWN = Offer("H100-SXM5-80GB", "lambda"), Offer("MI300X", "own")
PODS = (
    ("a", "team-a", "train-0", "jobs/train", "n1", 4, {"team": "vision"}),
    ("b", "team-b", "secret-of-b", "jobs/eval", "n1", 2, {"team": "language"}),
    ("c", "team-a", "serve-0", "deployments/serve", "n2", 1, {}),
    ("d", "team-c", "batch-0", "jobs/batch", "n2", 3, {"team": "vision"}),
)


class FixedCosts(CostReports):
    """As ``MeterDatabase``, of a store that is open."""

    def recorded(self) -> Recorded:
        return Recorded(self.namespaces(), self.store.metered_ms(), self.book.prices)


def filled(where: Location, pods: object = PODS, now_ms: int | None = None) -> FixedCosts:
    """Ten hours of two nodes: pods begin one after the other, and those of even number end."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    began_ms = now_ms - 10 * HOUR_MS
    store = CostStore(where)
    store.begin("test", Rule.MAX)
    nodes = {
        "n1": MeteredNode("n1", "node-1", 8, OFFER, began_ms),
        "n2": MeteredNode("n2", "node-2", 8, OWN, began_ms, Idle.RESERVED),
    }
    every = []
    for number, (uid, namespace, name, workload, node, gpus, labels, *run) in enumerate(pods):  # type: ignore[var-annotated,arg-type]
        attributes = Attributes(namespace, name, workload, "gpus", labels, 10, 1_010, *run)
        ended_ms = None if number % 2 else now_ms - HOUR_MS
        start_ms = began_ms + (number % 8) * HOUR_MS + 137
        every.append(MeteredPod(uid, nodes[node].name, Demand(gpus), start_ms, ended_ms, attributes))
    meters: Mapping[str, Meter] = {}
    metered_ms, ended = None, frozenset[str]()
    for at_ms in range(began_ms, now_ms + 1, HOUR_MS):
        there = [pod for pod in every if pod.started_ms <= at_ms]
        observation = Observation(at_ms, nodes, there, {}, metered_ms, False, ended)
        meters, changes = advance(meters, observation, Rule.MAX, {(1, 1000): 1.0})
        store.store("test", changes, at_ms)
        metered_ms, ended = at_ms, ended | set(changes.ended)
    return FixedCosts(store, shipped_prices())


@cache
def state(name: str) -> CostState:
    """Of pods in a namespace of this name, as what is recorded of it."""
    folder = Path(mkdtemp(prefix="kopt-costs-"))
    costs = filled(folder / "cost.db", [("a", name, name, f"jobs/{name}", "n1", 4, {"team": name})])
    return CostState(costs, costs.recorded(), problem=name)


__all__ = ["CostEvent", "CostQuestion", "CostReport", "FixedCosts", "filled", "state"]
