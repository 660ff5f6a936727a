"""Episodes of alerts out of a Prometheus, for the verbs and for the pages."""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kopt.core.alerts.catalogue import alert_rules
from kopt.core.alerts.episodes import Episode, episodes, with_firing

if TYPE_CHECKING:
    from kopt.data.demand.prometheus import Server

SHORTEST_STEP_S = 60
_MOST_STEPS = 2_000
_FIRING = 'ALERTS{alertstate="firing"}'


def read_episodes(server: "Server", span_s: int, *, every: bool = False) -> tuple[list[Episode], int]:
    """Of the last ``span_s`` seconds, the newest first, and how many seconds samples are apart. ``every``: also those
    of rules that are not kopt's. Raises ValueError, of which PrometheusError is one, and OSError.

    An alert that was resolved before the next sample is there too, and what fires is what fires now.
    """
    step_s = max(SHORTEST_STEP_S, math.ceil(span_s / _MOST_STEPS))
    now_s = time.time()
    until_s = int(now_s) // step_s * step_s
    # Within a step, or at its end: where rules are evaluated seldom a step may have no sample of its own.
    query = f"max_over_time({_FIRING}[{step_s}s]) or {_FIRING} * 1"
    past = server.query_range(query, until_s - span_s, until_s, step_s)
    now = server.query_range(_FIRING, now_s, now_s, 1)
    try:
        # What fired within a step has its sample at the end of it.
        series = [(item["metric"], [at_s - step_s for at_s in _times_s(item["values"])]) for item in past]
        firing = [item["metric"] for item in now if _times_s(item["values"])]
    except (KeyError, TypeError) as error:
        raise ValueError("what Prometheus answered is no matrix of samples") from error
    ours = {rule.alert for rule in alert_rules()}
    listed = with_firing(episodes(series, step_s, until_s), firing, now_s)
    return [each for each in listed if every or each.alert in ours], step_s


def _times_s(samples: Sequence[tuple[float, str]]) -> list[float]:
    """When it fired."""
    return [float(at_s) for at_s, value in samples if float(value) > 0]
