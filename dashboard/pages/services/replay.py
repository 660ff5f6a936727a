"""Earlier forecasts by asking today's model about moments that have passed: each history cut at its origin.

The buckets that came afterwards are not in the history that is sent, so nothing of the future leaks. A model that was
trained on these very days has seen them, though; the page of models says which data a version was trained on.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kopt.core.prediction import ModelVersion
from kopt.dashboard.data.forecasting import DemandClient, history_of
from kopt.dashboard.data.sources import PastForecast
from kopt.data.demand.table import DemandSeries
from kopt.serving.client.transport import RequestRefused
from kopt.serving.contract.demand_answers import DemandQuery, SeriesForecast

SPAN_S = 2 * 86_400
EVERY_S = 1800
DEADLINE_S = 15.0
PAST_KEPT = 256


@dataclass(frozen=True)
class Past:
    """Earlier forecasts of a service. ``replayed``: today's model asked again about moments that have passed."""

    forecasts: tuple[PastForecast, ...] = ()
    replayed: bool = False
    problem: str = ""
    pending: bool = False
    """Being asked for right now; there will be more in a moment."""


@dataclass
class _Replay:
    """What was answered for one service by one model, by the time it was asked about."""

    model: ModelVersion | None
    name: str
    answers: dict[float, SeriesForecast] = field(default_factory=dict)


class Replays:
    """Replayed forecasts of services. Origins are asked once, in the order of time and under one name: the endpoint
    remembers a series between requests and then only learns what is new."""

    def __init__(self, client: DemandClient) -> None:
        self._client = client
        self._replays: dict[str, _Replay] = {}

    async def of(self, series: DemandSeries, model: ModelVersion | None) -> Past:
        """The forecasts of the last two days. ``problem`` says why there are none."""
        origins = origins_of(series)
        if not origins:
            return Past(problem="The history is too short to look back on.")
        replay = self._replay_of(series.name, model)
        problem = ""
        for i in origins:
            made_s = float(series.times_s[i])
            if replay.answers and made_s <= max(replay.answers):
                continue
            answer = await self._ask(series.upto(i), replay.name)
            if isinstance(answer, str):
                problem = answer
                break
            replay.answers[made_s] = answer
        replay.answers = {t: a for t, a in replay.answers.items() if t >= float(series.times_s[-1]) - SPAN_S}
        past_forecasts = [
            forecast for made_s, answer in replay.answers.items() for forecast in matched(series, made_s, answer)
        ]
        return Past(tuple(past_forecasts), replayed=True, problem=problem)

    def _replay_of(self, name: str, model: ModelVersion | None) -> _Replay:
        held = self._replays.pop(name, None)
        if held is None or held.model != model:
            # A name of its own each time: the endpoint's memory of an earlier replay is ahead of this one.
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
            held = _Replay(model, f"replay {digest} {secrets.token_hex(4)}")
        self._replays[name] = held
        while len(self._replays) > PAST_KEPT:
            self._replays.pop(next(iter(self._replays)))
        return held

    async def _ask(self, series: DemandSeries, name: str) -> SeriesForecast | str:
        """The answer for one origin, or why there is none."""
        query = DemandQuery([history_of(series, name)], unit=series.unit, replay=True)
        try:
            answer = (await self._client.demand(query, deadline_s=DEADLINE_S)).series[0]
        except RequestRefused as error:
            return f"The endpoint refused the history: {error}"
        first = answer.horizons[0].demand
        return first.reasons[0].message if first.fallback or first.refused else answer


def origins_of(series: DemandSeries) -> Sequence[int]:
    """Indexes with a value on the half hours of two days, at least a day after the start of the series."""
    first = max(len(series) - 1 - SPAN_S // series.step_s, 86_400 // series.step_s)
    near = np.arange(first, len(series) - 1)
    # On a lattice of time, so that the same origins are asked about when the history has grown.
    on_lattice = (series.times_s[near] // series.step_s).astype(np.int64) % max(1, EVERY_S // series.step_s) == 0
    return [int(i) for i in near[on_lattice] if np.isfinite(series.value[i])]


def matched(series: DemandSeries, made_s: float, answer: SeriesForecast) -> list[PastForecast]:
    """The answered horizons whose bucket has come; none for horizons between two buckets."""
    past_forecasts = []
    origin = round((made_s - series.start_s) / series.step_s)
    for horizon in answer.horizons:
        ahead, rest = divmod(horizon.horizon_s, series.step_s)
        if rest or horizon.demand.refused or origin + ahead >= len(series):
            continue
        value = float(series.value[origin + ahead])
        actual = value if np.isfinite(value) else None
        past_forecasts.append(PastForecast(made_s, horizon.horizon_s, horizon.demand.quantiles, actual))
    return past_forecasts
