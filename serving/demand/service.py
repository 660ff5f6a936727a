"""A validated request becomes a forecast: model, deadline, fallback and GPUs. The heart of ``/v1/demand``."""

import asyncio
import functools
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import GRID_S, DemandDataError, DemandSeries
from kopt.models.demand.answers import STALE_S
from kopt.policies.lending.policy import LendingSettings
from kopt.serving.base.model_slot import DemandModel, ModelSlot
from kopt.serving.base.service import PredictorService
from kopt.serving.base.workers import Workers
from kopt.serving.client.fallback_demand import FALLBACK_MODEL, REACTIVE_WINDOW_S, fallback_forecast, recent
from kopt.serving.client.gpus import gpus_prediction
from kopt.serving.contract.demand_answers import DemandForecast, HorizonForecast, SeriesForecast
from kopt.serving.contract.live_answers import PushedDemand
from kopt.serving.contract.schemas import DemandRequest, PushRequest, SeriesIn
from kopt.serving.demand.anomalies import DemandAnomalies
from kopt.serving.demand.feature_lookup import Stored, StoredFeatures
from kopt.serving.demand.histories import demand_series
from kopt.serving.demand.live import LiveDemand
from kopt.serving.demand.metrics import DemandMetrics
from kopt.serving.demand.monitoring import PredictionTable
from kopt.serving.demand.preparation import Preparation
from kopt.serving.demand.series_cache import FEW_BUCKETS, STORE, Memories, Remembered
from kopt.serving.http.deadline import Deadline
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.problems import Problem, invalid

_LOG = logging.getLogger(__name__)
_PREPARING_S = 300.0
"""The longest that a promoted model waits for memories of live services; the one before answers meanwhile."""
INLINE_SERIES = 4
"""Up to this many series are answered on the event loop: handing over to a thread would cost more time."""


@dataclass(frozen=True)
class Observation:
    """One answered series, for comparison of its predictions with actual demand."""

    caller: str
    entry: SeriesIn
    series: DemandSeries
    """Ends on a full bucket of the answer; its step is the caller's."""
    answer: SeriesForecast
    evaluated: tuple[Prediction, ...]
    """The model's own predictions, also where the answer was the fallback."""
    quantiles: tuple[float, ...]
    capacity_per_bucket: float | None
    recent_max: float
    at_s: float


class Observer(Protocol):
    """Receives answers from the service; must return at once."""

    def distrusted(self, caller: str, name: str) -> Reason | None:
        """Why the model's predictions for this series are not used now; None where they are."""

    @property
    def challenger_drift(self) -> Reason | None:
        """Why what the challenger predicts cannot be trusted now."""

    def wants(self, caller: str, series: DemandSeries) -> bool:
        """Whether an observation of this series at its present end is still to be made."""

    def observe(self, observation: Observation) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None:
        """Finish what is queued, then end."""


@dataclass(frozen=True)
class Job:
    """What a request asks of every series."""

    caller: str
    request: DemandRequest
    model: DemandModel
    deadline: Deadline


@dataclass(frozen=True)
class History:
    """``raw`` as sent, cut so that it ends on a full bucket of the grid; ``on_grid`` its sums; what is remembered."""

    raw: DemandSeries
    on_grid: DemandSeries
    kept: Remembered
    now_s: float | None = None
    """The moment of the question, where the history's age is to count."""
    is_live: bool = False
    """Whether it was pushed, and not sent with the question."""


@dataclass(frozen=True)
class Task:
    """One series of a job: the caller's entry and, where it has one, its history."""

    entry: SeriesIn
    history: History | None = None


class DemandService(PredictorService[DemandModel]):
    """Answers requests with the model in ``slot``. One per replica.

    The model of ``challenger`` is only watched, by the ``observer``, which writes to ``table``. Advice of the table
    that is older than ``advice_age_s`` is not given.
    """

    required = True
    refresh_rounds = 1

    def __init__(
        self,
        slot: ModelSlot,
        metrics: EndpointMetrics,
        *,
        features: StoredFeatures | None = None,
        live: LiveDemand | None = None,
        anomalies: DemandAnomalies | None = None,
        memories: Memories | None = None,
        observer: Observer | None = None,
        challenger: ModelSlot | None = None,
        table: PredictionTable | None = None,
        advice_age_s: float = math.inf,
        lending: LendingSettings | None = None,
        threads: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._counters = DemandMetrics(metrics, table)
        super().__init__(slot, metrics, self._counters, challenger)
        self.observer, self.table = observer, table
        self._features, self._live, self._advice_age_s = features, live, advice_age_s
        self._anomalies = anomalies
        self._memories = memories or Memories()
        self._lending, self._clock = lending or LendingSettings(), clock
        self._preparation = None if live is None else Preparation(live, self._memories, clock)
        if self._preparation is not None:
            slot.prepare = functools.partial(self._preparation.run, within_s=_PREPARING_S)
        self._workers = Workers(threads, "forecast")
        # One thread: what is pushed must not take the processors from answers.
        self._writer = Workers(1, "live-demand")

    @property
    def drift(self) -> Reason | None:
        return None if self.observer is None else self.observer.challenger_drift

    def start(self) -> None:
        if self.observer is not None:
            self.observer.start()
        threading.Thread(target=self.open_store, name="feature-store", daemon=True).start()

    def refresh(self) -> None:
        first = self.slot.current is None
        super().refresh()
        if first and self.slot.current is not None:
            # Beside the first answers: one that has just started must not keep callers waiting who know their history.
            threading.Thread(target=self._prepare, args=[self.slot.current], name="preparation", daemon=True).start()
        for slot in self.slots:
            self._counters.refused.labels(slot.alias).set(int(slot.refuses))

    async def advice(self, only_of: str | None) -> Mapping[str, list[Any]]:
        """``recommendations``: lending advice per pool."""
        if self.table is None:
            return {"recommendations": []}
        documents = await asyncio.to_thread(self.table.advice, only_of, time.time() - self._advice_age_s)
        return {"recommendations": [json.loads(document) for document in documents]}

    def open_store(self) -> None:
        """Connects to the feature store ahead of the first request by name; blocks for seconds."""
        if self._features is None:
            return
        try:
            self._features.open()
        except Exception:  # noqa: BLE001 - edge of a thread: requests with a history need no store
            _LOG.exception("the feature store cannot be opened")

    def _prepare(self, model: DemandModel) -> None:
        if self._preparation is None:
            return
        try:
            self._preparation.run(model)
        except Exception as error:  # noqa: BLE001 - edge of a thread: first answers only take longer
            _LOG.warning("live services are not prepared, their first answers take longer: %s", error)

    def close(self) -> None:
        if self._preparation is not None:
            self._preparation.stop()
        if self.observer is not None:
            self.observer.stop()
        self._workers.close()
        self._writer.close()
        if self._live is not None:
            self._live.close()
        if self.table is not None:
            self.table.close()

    async def forecast(self, request: DemandRequest, deadline: Deadline, caller: str = "") -> DemandForecast:
        """The answer within the deadline. Raises Problem for invalid requests."""
        started = time.perf_counter()
        series = demand_series(request)
        model = self.model_for(lambda: "\0".join([caller, *(entry.name for entry in request.series)]))
        if model is None:
            series_forecasts = self._fallbacks(
                request, self.slot.error or Reason("NO_MODEL", "No model is loaded yet.")
            )
        else:
            job = Job(caller, request, model, deadline)
            series_forecasts = await self._in_time(job, [self._task(job, i, item) for i, item in enumerate(series)])
        for series_forecast in series_forecasts:
            self._counters.answered(series_forecast)
        version = FALLBACK_MODEL if model is None else self._answered_by(model, series_forecasts)
        return DemandForecast(tuple(series_forecasts), version, time.perf_counter() - started)

    def _answered_by(self, model: DemandModel, series_forecasts: Sequence[SeriesForecast]) -> ModelVersion:
        """The model that was asked; the champion, where that has answered all that another one could not."""
        champion = self.slot.version
        versions = {horizon.demand.model for each in series_forecasts for horizon in each.horizons}
        return champion if champion in versions and model.version not in versions else model.version

    async def push(self, service: str, request: PushRequest, deadline: Deadline, caller: str = "") -> PushedDemand:
        """Buckets of a service's demand for the store. Raises Problem."""
        if self._live is None:
            raise Problem(503, "This endpoint keeps no live demand.")
        try:
            pushed = await self._writer.run(deadline, self._live.push, service, caller, request)
        except TimeoutError:
            raise Problem(503, f"{deadline.reason.message} Push again.", headers={"retry-after": "2"}) from None
        if self._preparation is not None and pushed.changed > FEW_BUCKETS:
            self._preparation.arrived(service, lambda: self.slot.current)
        return pushed

    def _task(self, job: Job, index: int, raw: DemandSeries | None) -> Task:
        entry = job.request.series[index]
        if raw is None:
            return Task(entry)
        raw, on_grid = _on_grid(f"series.{index}", raw)
        kept = self._memories.of(job.caller, job.model.version, on_grid)
        return Task(entry, History(raw, on_grid, kept, job.request.now_s))

    def _named(self, job: Job, tasks: list[Task]) -> list[Task]:
        """The tasks without a history with what was pushed of their services; blocks where that is not at hand."""
        names = [task.entry.name for task in tasks if task.history is None]
        if not names or self._live is None:
            return tasks
        try:
            series = self._live.series(names)
        except Exception:  # noqa: BLE001 - edge: there may still be a row in the feature store
            _LOG.exception("the histories of live demand cannot be read")
            return tasks
        return [
            replace(task, history=self._pushed(job, series[task.entry.name]))
            if task.history is None and task.entry.name in series
            else task
            for task in tasks
        ]

    def _pushed(self, job: Job, series: DemandSeries) -> History:
        # A memory of the store's own: what a caller sends under the same name is another history.
        kept = self._memories.of(STORE, job.model.version, series)
        now_s = self._clock() if job.request.now_s is None else job.request.now_s
        # Only for old histories: answers are the same, and kept, as long as the clock is not part of the question.
        is_old = now_s - (series.start_s + len(series) * series.step_s) > STALE_S
        return History(series, series, kept, now_s if is_old else None, is_live=True)

    async def _in_time(self, job: Job, tasks: list[Task]) -> list[SeriesForecast]:
        if job.deadline.remaining_s() <= 0:
            return self._fallbacks(job.request, job.deadline.reason)
        names = [task.entry.name for task in tasks if task.history is None]
        if names and self._live is not None and self._live.at_hand(names):
            tasks = self._named(job, tasks)
        if self._quick(tasks):
            return self._answers(job, tasks)
        try:
            return await self._workers.run(job.deadline, self._answers, job, tasks)
        except TimeoutError:
            self.canary.failed(job.model)
            return self._fallbacks(job.request, job.deadline.reason)

    def _quick(self, tasks: list[Task]) -> bool:
        """Whether the event loop can answer at once: few series, all of them cached and not locked."""
        if len(tasks) > INLINE_SERIES:
            return False
        names = [task.entry.name for task in tasks if task.history is None]
        if names and self._live is not None and not self._live.at_hand(names):
            return False
        if names and self._features is not None and not self._features.quick(names):
            return False
        histories = [task.history for task in tasks if task.history is not None]
        return all(not h.kept.lock.locked() and h.kept.quick(h.on_grid) for h in histories)

    def _answers(self, job: Job, tasks: list[Task]) -> list[SeriesForecast]:
        """One answer per series; those that the deadline leaves no time for get the fallback."""
        tasks = self._named(job, tasks)
        named = self._from_store(job, [task.entry.name for task in tasks if task.history is None])
        answers = []
        for task in tasks:
            if task.history is None:
                answers.append(named[task.entry.name])
            elif job.deadline.remaining_s() <= 0:
                answers.append(self._fallback(job.request, task.entry, job.deadline.reason, task.history))
            else:
                answers.append(self._with_anomaly(job, task.history, self._answer(job, task.entry, task.history)))
        return answers

    def _with_anomaly(self, job: Job, history: History, answer: SeriesForecast) -> SeriesForecast:
        """Only what was pushed is watched: other histories belong to their callers, and may be of any time."""
        if self._anomalies is None or not history.is_live or job.request.replay:
            return answer
        anomaly = self._anomalies.latest(history.raw)
        return answer if anomaly is None else replace(answer, anomaly=anomaly)

    def _answer(self, job: Job, entry: SeriesIn, history: History) -> SeriesForecast:
        raw, on_grid = history.raw, history.on_grid
        # A question about the past is answered, but is no part of the record (``DemandRequest.replay``).
        observer = None if job.request.replay else self.observer
        why = observer.distrusted(job.caller, entry.name) if observer else None
        predictions = self._predict(job, history)
        if isinstance(predictions, Reason):
            return self._fallback(job.request, entry, predictions, history)
        capacity = job.request.capacity_per_gpu
        per_bucket = None if capacity is None else capacity * on_grid.step_s / raw.step_s
        highest = recent_max(on_grid)
        if why is not None:
            answer = self._fallback(job.request, entry, why, history)
        else:
            answer = self._series(job.request, entry.name, on_grid.step_s, predictions, per_bucket, highest)
        if observer is not None and observer.wants(job.caller, on_grid):
            observer.observe(
                Observation(
                    job.caller,
                    entry,
                    raw,
                    answer,
                    predictions,
                    tuple(job.request.quantiles),
                    per_bucket,
                    highest,
                    self._clock(),
                )
            )
        return answer

    def _predict(self, job: Job, history: History) -> tuple[Prediction, ...] | Reason:
        try:
            predictions = _ask(job, history)
        except Exception as error:  # noqa: BLE001 - edge: a model's bug must not become the caller's outage
            _LOG.exception("the model failed on a series of %d buckets", len(history.on_grid))
            if self.canary.failed(job.model) and (champion := self.slot.current) is not None:
                kept = self._memories.of(job.caller, champion.version, history.on_grid)
                return self._predict(replace(job, model=champion), replace(history, kept=kept))
            return Reason("MODEL_ERROR", f"The model failed ({type(error).__name__}); this is the fallback.")
        if not all(_finite(prediction) for prediction in predictions):
            self.canary.failed(job.model)
            return Reason("MODEL_ERROR", "The model's answer was not finite; this is the fallback.")
        self.canary.answered(job.model)
        return predictions

    def _series(
        self,
        request: DemandRequest,
        name: str,
        bucket_s: int,
        predictions: Sequence[Prediction],
        capacity_per_bucket: float | None,
        highest: float | None,
    ) -> SeriesForecast:
        horizons = tuple(
            HorizonForecast(
                horizon_s,
                demand,
                None
                if capacity_per_bucket is None
                else gpus_prediction(demand, capacity_per_bucket, highest, self._lending),
            )
            for horizon_s, demand in zip(request.horizons_s, predictions, strict=True)
        )
        return SeriesForecast(name, request.unit, bucket_s, horizons)

    def _fallbacks(self, request: DemandRequest, why: Reason) -> list[SeriesForecast]:
        return [self._fallback(request, entry, why) for entry in request.series]

    def _fallback(
        self, request: DemandRequest, entry: SeriesIn, why: Reason, history: History | None = None
    ) -> SeriesForecast:
        if entry.t is None and history is not None:
            recent_demand = recent(history.raw.times_s.tolist(), history.raw.value.tolist())
        else:
            recent_demand = recent(entry.t or (), entry.value or ())
        predictions = fallback_forecast(recent_demand, request.horizons_s, request.quantiles, request.unit, why)
        capacity = request.capacity_per_gpu
        if recent_demand is None:
            return self._series(request, entry.name, GRID_S, predictions, capacity, None)
        per_bucket = None if capacity is None else capacity * recent_demand.bucket_s / recent_demand.step_s
        return self._series(
            request, entry.name, recent_demand.bucket_s, predictions, per_bucket, recent_demand.half_hour_max
        )

    def _from_store(self, job: Job, names: list[str]) -> dict[str, SeriesForecast]:
        if not names:
            return {}
        request = job.request
        why = Reason("NO_HISTORY", "No history in the request and no feature store here; send t and value.")
        storeds: list[Stored] | None = None
        if self._features is not None:
            try:
                storeds = self._features.forecast(job.model, names, request.horizons_s, request.quantiles, request.unit)
            except Exception:  # noqa: BLE001 - edge: a store that is down is no reason to answer nothing
                _LOG.exception("the feature store failed")
                if self.canary.failed(job.model) and (champion := self.slot.current) is not None:
                    return self._from_store(replace(job, model=champion), names)
                why = Reason("STORE_DOWN", "The feature store does not answer; send t and value with the request.")
        if storeds is None:
            refusal = fallback_forecast(None, request.horizons_s, request.quantiles, request.unit, why)
            storeds = [Stored(refusal, GRID_S, None)] * len(names)
        # A row of the store is on the grid, so the caller's capacity is per bucket of the grid.
        return {
            name: self._series(
                request, name, stored.bucket_s, stored.predictions, request.capacity_per_gpu, stored.recent_max
            )
            for name, stored in zip(names, storeds, strict=True)
        }


def _ask(job: Job, history: History) -> tuple[Prediction, ...]:
    """The model's answer; the cached one where request and history are byte for byte the same."""
    request, series, kept = job.request, history.on_grid, history.kept
    request_key = (
        series.value.tobytes(),
        series.start_s,
        series.unit,
        tuple(request.horizons_s),
        tuple(request.quantiles),
        history.now_s,
    )
    with kept.lock:
        if kept.request_key != request_key:
            kept.answer = job.model.forecast(
                series, request.horizons_s, request.quantiles, now_s=history.now_s, calibration=kept.memory
            )
            kept.request_key = request_key
        return kept.answer


def _on_grid(path: str, series: DemandSeries) -> tuple[DemandSeries, DemandSeries]:
    """The history cut so that its last bucket ends a coarse one, and the same on the grid."""
    if series.step_s >= GRID_S:
        return series, series
    if GRID_S % series.step_s:
        raise invalid(f"{path}.t", f"the step of {series.step_s} s does not divide {GRID_S} s")
    factor = GRID_S // series.step_s
    kept = series.tail(len(series) - len(series) % factor) if len(series) >= factor else series
    try:
        return kept, kept.resampled()
    except DemandDataError as error:
        raise invalid(f"{path}.t", str(error)) from error


def recent_max(series: DemandSeries) -> float:
    """The largest demand of the last half hour; 0 where there is none."""
    buckets = max(1, REACTIVE_WINDOW_S // series.step_s)
    values = series.value[-buckets:]
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else 0.0


def _finite(prediction: Prediction) -> bool:
    if prediction.value is None:
        return True
    numbers = (prediction.value, prediction.low, prediction.high, *prediction.quantiles.values())
    return all(number is not None and abs(number) < float("inf") for number in numbers)


__all__ = ["Deadline", "DemandService", "ModelVersion", "Observation", "Observer", "recent_max"]
