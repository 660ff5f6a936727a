"""A controller that asks for forecasts by name with a deadline, again and again, while others break what answers it."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kopt.serving.client.blocking import PredictionClient
from kopt.serving.contract.demand_answers import DemandQuery, History

DEADLINE_S = 2.0
LATEST_S = 1.5 * DEADLINE_S
"""Until the caller goes on: its thread, too, has to get a processor."""
CLEAR = {"DEADLINE", "ENDPOINT_UNREACHABLE", "ENDPOINT_ERROR", "NOT_READY", "OVERLOADED", "CIRCUIT_OPEN"}
"""Reasons that say what is wrong with the endpoint, and not with the question."""
GRID_S = 300


@dataclass(frozen=True)
class Call:
    """When it was sent, how long it took, and why the answer is not a model's; empty where it is."""

    at_s: float
    seconds: float
    reason: str

    @property
    def good(self) -> bool:
        return not self.reason


def push_history(client: PredictionClient, service: str, values: Sequence[float]) -> None:
    """Demand of the buckets that have ended; raises as the client does."""
    end_s = int(time.time()) // GRID_S * GRID_S
    times = [float(end_s - GRID_S * back) for back in range(len(values), 0, -1)]
    client.push_demand(service, times, values, deadline_s=30.0)


def ask(client: PredictionClient, service: str) -> Call:
    at_s = time.monotonic()
    forecast = client.demand(DemandQuery([History(service)]), deadline_s=DEADLINE_S)
    seconds = time.monotonic() - at_s
    demand = forecast.series[0].horizons[0].demand
    codes = [reason.code for reason in demand.reasons] or ["no reason"]
    return Call(at_s, seconds, codes[0] if forecast.fallback or demand.refused else "")


@contextmanager
def asked_by_name(client: PredictionClient, service: str) -> Iterator[list[Call]]:
    """The calls until the block ends, which grow meanwhile."""
    calls: list[Call] = []
    enough = threading.Event()

    def keep_asking() -> None:
        while not enough.wait(0.05):
            calls.append(ask(client, service))

    controller = threading.Thread(target=keep_asking, name="controller", daemon=True)
    controller.start()
    try:
        yield calls
    finally:
        enough.set()
        controller.join()


def assert_clear(calls: Sequence[Call]) -> None:
    """Each has a model's answer or says what is wrong with the endpoint, and none keeps its caller for long."""
    late = [call for call in calls if call.seconds > LATEST_S]
    assert not late, late
    reasons = Counter(call.reason for call in calls if not call.good)
    assert not reasons.keys() - CLEAR, reasons
