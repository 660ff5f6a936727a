"""What queues used and waited for over weeks, from a Prometheus that scrapes `kopt controller queues`."""

import math
import time

from kopt.core.scheduling.queue_demand import HOUR_S, HOURLY_QUERY, QueueDemandHistory, history_of
from kopt.core.scheduling.queue_tree import DEMAND_METRIC
from kopt.data.demand.prometheus import CHUNK_POINTS, PrometheusError, Server


def read_queue_demand(server: Server, since_s: float, now_s: float | None = None) -> QueueDemandHistory:
    """Whole hours of the last ``since_s`` seconds.

    Raises PrometheusError: the server does not answer, or has none of these series.
    """
    end_s = math.floor((time.time() if now_s is None else now_s) / HOUR_S) * HOUR_S
    hours = max(1, int(since_s // HOUR_S))
    start_s = end_s - hours * HOUR_S
    series: list[dict[str, object]] = []
    for begin in range(start_s + HOUR_S, end_s + 1, CHUNK_POINTS * HOUR_S):
        until = min(begin + (CHUNK_POINTS - 1) * HOUR_S, end_s)
        series += server.query_range(HOURLY_QUERY, begin, until, HOUR_S)
    try:
        history = history_of(series, start_s, hours)
    except ValueError as error:
        raise PrometheusError(str(error)) from error
    if not history.used:
        raise PrometheusError(
            f"{server.display_url} has no {DEMAND_METRIC}: is `kopt controller queues` running, and scraped?"
        )
    return history
