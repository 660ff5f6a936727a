"""Asks the endpoint for forecasts of many services: batches within its limits, and only what has changed."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.data.demand.table import DemandSeries
from kopt.policies.lending.policy import LendingSettings
from kopt.serving.client.fallback_answer import fallback_answer
from kopt.serving.client.transport import RequestRefused
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, History, SeriesForecast

BATCH_SERIES, BATCH_POINTS = 8, 60_000
"""Series and buckets per request: at most 3 MiB of JSON, and time enough for an endpoint that knows none of them."""
HISTORY_S = 8 * 86_400
"""What the features look at, seven days, and one to spare."""
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
DEADLINE_S = 30.0
"""Nobody waits for these: they are asked in the background."""

Key = tuple[float, int, str]


class DemandClient(Protocol):
    """The part of ``AsyncPredictionClient`` that forecasting needs."""

    async def demand(self, query: DemandQuery, *, deadline_s: float | None = None) -> DemandForecast: ...


class Forecasts:
    """The newest forecast of every service. ``model_version`` in the key makes a promotion ask again."""

    def __init__(self, client: DemandClient) -> None:
        self._client = client
        self._held: dict[str, tuple[Key, SeriesForecast]] = {}

    def of(self, name: str) -> SeriesForecast | None:
        result = self._held.get(name)
        return result[1] if result else None

    def forget_errors(self) -> None:
        """Drop what was said in place of an endpoint that answers again: it is no longer true, and asked anew next."""
        self._held = {name: held for name, held in self._held.items() if not _endpoint_problem(held[1])}

    async def refresh(
        self,
        all_series: Sequence[DemandSeries],
        clock_s: float | None,
        model: ModelVersion | None,
        after_batch: Callable[[], None] = lambda: None,
        live: Collection[str] = (),
    ) -> str:
        """Ask for what is new, changed or was answered without the model. Returns the last trouble, or nothing.

        Services in ``live`` are asked about by name: the endpoint has their history, and remembers more of it.
        """
        present = {series.name for series in all_series}
        self._held = {name: held for name, held in self._held.items() if name in present}
        due = [series for series in all_series if self._is_due(series, model)]
        problem = ""
        for batch in batches(due, live):
            answer = await self._ask(batch, clock_s, by_name=batch[0].name in live)
            for series, forecast in zip(batch, answer.series, strict=True):
                self._held[series.name] = (_key(series, model), forecast)
            problem = next((_endpoint_problem(f) for f in answer.series if _endpoint_problem(f)), problem)
            after_batch()
        return problem

    def _is_due(self, series: DemandSeries, model: ModelVersion | None) -> bool:
        held = self._held.get(series.name)
        return held is None or held[0] != _key(series, model) or held[1].fallback

    async def _ask(
        self, batch: Sequence[DemandSeries], clock_s: float | None, *, by_name: bool = False
    ) -> DemandForecast:
        # All of a batch share the calendar or none of it does, so one clock fits.
        now_s = clock_s if batch[0].start_known and not by_name else None
        histories = [History(series.name) if by_name else history_of(series) for series in batch]
        query = DemandQuery(histories, unit=batch[0].unit, quantiles=QUANTILES, now_s=now_s)
        try:
            return await self._client.demand(query, deadline_s=DEADLINE_S)
        except RequestRefused as error:
            if len(batch) == 1:
                why = Reason("REQUEST_REFUSED", f"The endpoint refused this history: {error}")
                return fallback_answer(query, why, LendingSettings())
        # One bad history must not cost the others of its batch their forecast.
        halves = batch[: len(batch) // 2], batch[len(batch) // 2 :]
        answers = [await self._ask(half, clock_s, by_name=by_name) for half in halves]
        return DemandForecast(answers[0].series + answers[1].series, answers[0].model)


def _endpoint_problem(forecast: SeriesForecast) -> str:
    """Why the endpoint could not be used, when that is why the model did not answer."""
    codes = ("ENDPOINT_UNREACHABLE", "CIRCUIT_OPEN", "DEADLINE", "OVERLOADED", "ENDPOINT_ERROR", "NOT_READY")
    reasons = (h.demand.reasons[0] for h in forecast.horizons if h.demand.fallback and h.demand.reasons)
    return next((reason.message for reason in reasons if reason.code in codes), "")


def _key(series: DemandSeries, model: ModelVersion | None) -> Key:
    return (float(series.times_s[-1]), len(series), model.version if model else "")


def batches(all_series: Sequence[DemandSeries], live: Collection[str] = ()) -> Iterator[Sequence[DemandSeries]]:
    """Series that may go into one request: same unit, same kind of clock, all ``live`` or none; bounded in number and
    size."""
    groups: dict[tuple[str, bool, bool], list[DemandSeries]] = {}
    for series in all_series:
        groups.setdefault((series.unit, series.start_known, series.name in live), []).append(series)
    for group in groups.values():
        batch: list[DemandSeries] = []
        points = 0
        for series in group:
            size = min(len(series), HISTORY_S // series.step_s)
            if batch and (len(batch) == BATCH_SERIES or points + size > BATCH_POINTS):
                yield batch
                batch, points = [], 0
            batch.append(series)
            points += size
        if batch:
            yield batch


def history_of(series: DemandSeries, name: str = "") -> History:
    """The last days of a series for a request, without gaps at the end (they say nothing)."""
    recent = series.tail(max(1, HISTORY_S // series.step_s))
    tokens = (recent.in_tokens, recent.out_tokens)
    in_tok, out_tok = (() if column is None else column.tolist() for column in tokens)
    return History(name or series.name, recent.times_s.tolist(), recent.value.tolist(), in_tok, out_tok)
