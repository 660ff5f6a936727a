"""Whether the endpoint's own record says that a model should not be acted on now, as alarms for switches.

One tenant can make an alarm of their own measurements, which costs them wider intervals. A feature of the whole cluster
goes off only where several see the same.
"""

import math
from collections.abc import Awaitable, Callable

from kopt.core.switches import Alarm, AlarmKind, AlarmUnknown
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.common import AnswerError
from kopt.serving.contract.model_answers import IntervalHealthOut, ModelHealthResponse

LEAST_OWNERS = 2
"""Callers and namespaces whose measurements have to miss."""
SHARE_OF_SERIES = 0.5
"""Of the services, with a drift alarm: from there on their model is not acted on for any of them."""
_CHAMPION = "champion"
_ERRORS = (EndpointFailure, RequestRefused, AnswerError)
Drift = Callable[[float], Awaitable[Alarm | None]]


def drift_of(client: AsyncPredictionClient, predictor: str) -> Drift:
    """The drift alarm of a predictor's model that serves; it raises AlarmUnknown where the endpoint does not say."""

    async def drift(_since_s: float) -> Alarm | None:
        try:
            if predictor == "demand":
                return of_series(await client.model_health())
            entries = (await client.predictors_health()).predictors
        except _ERRORS as error:
            raise AlarmUnknown(f"the endpoint does not say how {predictor} holds: {error}") from error
        # The version that was compared last comes first.
        entry = next((item for item in entries if (item.predictor, item.role) == (predictor, _CHAMPION)), None)
        return None if entry is None else of_intervals(entry)

    return drift


def of_intervals(entry: IntervalHealthOut) -> Alarm | None:
    """An alarm that several owners share, or all there is without namespaces."""
    apart = any(comparison.namespace for comparison in entry.newest)
    if not entry.alarm or (apart and entry.widened_for < LEAST_OWNERS):
        return None
    text = entry.reasons[0].message if entry.reasons else "Its intervals miss too often."
    return Alarm(AlarmKind.DRIFT, f"{entry.predictor}@{entry.version}", f"{entry.predictor} {entry.version}: {text}")


def of_series(health: ModelHealthResponse) -> Alarm | None:
    """Drift of demand on half of the services, and on two at least."""
    matched = [series for series in health.series if series.matched]
    alarms = sum(series.alarm for series in matched)
    if alarms < max(2, math.ceil(SHARE_OF_SERIES * len(matched))):
        return None
    version = health.model.version
    text = f"demand {version}: {alarms} of {len(matched)} services have a drift alarm."
    return Alarm(AlarmKind.DRIFT, f"demand@{version}", text)
