"""Episodes of alerts out of a Prometheus, for the verbs and for the pages."""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kopt.core.alerts.catalogue import alert_rules
from kopt.core.alerts.episodes import Episode, episodes

if TYPE_CHECKING:
    from kopt.data.demand.prometheus import Server

SHORTEST_STEP_S = 60
_MOST_STEPS = 2_000


def read_episodes(server: "Server", span_s: int, *, every: bool = False) -> tuple[list[Episode], int]:
    """Of the last ``span_s`` seconds, the newest first, and how many seconds samples are apart. ``every``: also those
    of rules that are not kopt's. Raises ValueError, of which PrometheusError is one, and OSError."""
    step_s = max(SHORTEST_STEP_S, math.ceil(span_s / _MOST_STEPS))
    until_s = int(time.time()) // step_s * step_s
    answer = server.query_range('ALERTS{alertstate="firing"}', until_s - span_s, until_s, step_s)
    try:
        series = [(item["metric"], _times_s(item["values"])) for item in answer]
    except (KeyError, TypeError) as error:
        raise ValueError("what Prometheus answered is no matrix of samples") from error
    ours = {rule.alert for rule in alert_rules()}
    return [each for each in episodes(series, step_s, until_s) if every or each.alert in ours], step_s


def _times_s(samples: Sequence[tuple[float, str]]) -> list[float]:
    """When it fired."""
    return [float(at_s) for at_s, value in samples if float(value) > 0]
