"""How busy the GPUs of each node were in an hour, from a Prometheus with the series that our rules record."""

import math

from kopt.data.demand.prometheus import PrometheusError, Server
from kopt.policies.efficiency.busy_counts import EVERY_S, HOUR_S, STEPS, BusyCounts

QUERY = f'count_values by (node) ("step", clamp(ceil(kopt:gpu:busy_ratio * {STEPS}), 0, {STEPS}))'
"""GPUs that pods hold, by node and step of 5 %: hundreds of series however many GPUs there are."""


def read_busy_hour(server: Server, start_s: float) -> dict[str, BusyCounts]:
    """By node, counted every five minutes of the hour that begins at ``start_s``; empty where nothing was recorded.

    Raises PrometheusError.
    """
    answer = server.query_range(QUERY, start_s + EVERY_S, start_s + HOUR_S, EVERY_S)
    by_node: dict[str, dict[int, int]] = {}
    try:
        for series in answer:
            steps = by_node.setdefault(str(series["metric"].get("node", "")), {})
            step = int(series["metric"]["step"])
            gpus = sum(number for _, text in series["values"] if math.isfinite(number := float(text)))
            steps[step] = steps.get(step, 0) + round(gpus)
        return {node: BusyCounts.of(steps) for node, steps in by_node.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrometheusError("not counts by node as Prometheus answers them") from error
