"""Earlier forecasts by asking today's model about moments that have passed: each history cut at its origin.

The bucket that came afterwards is not in the history that is sent, so nothing of the future leaks. A model that was
trained on these very days has seen them, though; the page says which data a version was trained on.
"""

import asyncio
from collections.abc import Sequence

import numpy as np

from kopt.dashboard.forecasting import Asks, history_of
from kopt.dashboard.sources import Past, PastForecast
from kopt.data.demand.table import DemandSeries
from kopt.serving.answers import DemandQuery, SeriesForecast
from kopt.serving.client import RequestRefused

SPAN_S = 2 * 86_400
ORIGINS = 96
"""At most: every half hour of two days."""
DEADLINE_S = 8.0
_BATCH = 24


async def replay(client: Asks, series: DemandSeries) -> Past:
    """Forecasts of the last two days. ``problem`` says why there are none."""
    origins = origins_of(series)
    if not origins:
        return Past(problem="The history is too short to look back on.")
    found: list[PastForecast] = []
    for begin in range(0, len(origins), _BATCH):
        chosen = origins[begin : begin + _BATCH]
        histories = [history_of(series.upto(i), f"replay {i}") for i in chosen]
        query = DemandQuery(histories, unit=series.unit, replay=True)
        try:
            answer = await client.demand(query, deadline_s=DEADLINE_S)
        except RequestRefused as error:
            return Past(problem=f"The endpoint refused the history: {error}")
        if answer.fallback and all(one.fallback for one in answer.series):
            reasons = answer.series[0].horizons[0].demand.reasons
            return Past(problem=reasons[0].message if reasons else "The model does not answer.")
        for i, forecast in zip(chosen, answer.series, strict=True):
            found += _matched(series, i, forecast)
        # Other pages are drawn between two batches.
        await asyncio.sleep(0)
    return Past(tuple(found), replayed=True)


def origins_of(series: DemandSeries) -> Sequence[int]:
    """Evenly spaced indexes with a value, at least a day after the start of the series."""
    first = max(len(series) - 1 - SPAN_S // series.step_s, 86_400 // series.step_s)
    stride = max(1, (len(series) - 1 - first) // ORIGINS)
    return [i for i in range(len(series) - 2, first - 1, -stride) if np.isfinite(series.value[i])][::-1]


def _matched(series: DemandSeries, origin: int, forecast: SeriesForecast) -> list[PastForecast]:
    """The answered horizons whose bucket has come."""
    found = []
    for horizon in forecast.horizons:
        target, rest = divmod(horizon.horizon_s, series.step_s)
        target += origin
        if rest or horizon.demand.refused or target >= len(series):
            continue
        value = float(series.value[target])
        made_s = float(series.times_s[origin])
        found.append(PastForecast(made_s, horizon.horizon_s, horizon.demand.quantiles,
                                  value if np.isfinite(value) else None))  # fmt: skip
    return found
