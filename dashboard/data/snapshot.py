"""The snapshot that every page shows part of: services, their forecasts, and how the endpoint does."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kopt.core.prediction import ModelVersion
from kopt.dashboard.data.access import Holds, pods_of
from kopt.dashboard.data.capacity import FILE, Capacity, CapacityError, assumed_capacity, read_capacities
from kopt.dashboard.data.feed import FAILURES, Connections, Feed, sentence
from kopt.dashboard.data.forecasting import Forecasts
from kopt.dashboard.data.histories import last_value_s
from kopt.dashboard.data.sources import Endpoint, Service, Snapshot
from kopt.data.demand.table import DemandDataError, DemandSeries

PREDICTOR = "demand"
LIVE_WITHIN_S = 3600.0
"""Histories whose newest bucket is older than this are a replay: their own end is then their now."""


class SnapshotReader:
    """One round: read histories, ask the endpoint, swap the snapshot."""

    def __init__(self, connections: Connections) -> None:
        self._from, self._clock = connections, connections.clock
        self._forecasts = Forecasts(connections.client)
        self._snapshot = Snapshot({}, Endpoint(connections.url), connections.clock(), ready=False)

    async def latest(self) -> Snapshot:
        return self._snapshot

    def report(self, problem: str) -> None:
        """Show a sentence in place of the problems of the last round."""
        self._snapshot = replace(self._snapshot, problems=(problem,))

    async def refresh(self) -> None:
        problems: list[str] = []
        series, capacities = await asyncio.to_thread(self._read, problems)
        clock_s = self._calendar_clock(series)
        models, problem = await self._serving()
        version = next((model for model in models if model.name == PREDICTOR), None)
        if not problem:
            self._forecasts.forget_errors()

        def publish(*, ready: bool, failed: str = "") -> None:
            endpoint = Endpoint(self._from.url, problem or failed, version, models)
            self._publish(series, capacities, clock_s, endpoint, problems, ready)

        publish(ready=self._snapshot.ready)
        # Pages fill as batches come in: a fresh endpoint takes seconds to learn each service.
        failed = await self._forecasts.refresh(
            series, clock_s, version, lambda: publish(ready=self._snapshot.ready), self._from.histories.live
        )
        publish(ready=True, failed=failed)

    def _publish(
        self,
        series: Sequence[DemandSeries],
        capacities: Mapping[str, Capacity],
        clock_s: float | None,
        endpoint: Endpoint,
        problems: Sequence[str],
        ready: bool,
    ) -> None:
        services = {
            demand_series.name: Service(
                demand_series,
                self._forecasts.of(demand_series.name),
                capacities[demand_series.name],
                _clock_of(demand_series, clock_s),
            )
            for demand_series in series
        }
        is_past = clock_s is not None and self._clock() - clock_s > LIVE_WITHIN_S
        ended_s = clock_s if is_past else None
        self._snapshot = Snapshot(services, endpoint, self._clock(), tuple(problems), ended_s, ready)

    def _read(self, problems: list[str]) -> tuple[Sequence[DemandSeries], Mapping[str, Capacity]]:
        try:
            series = self._from.histories.read()
        except DemandDataError as error:
            problems.append(f"Demand histories cannot be read: {error}")
            series = [service.series for service in self._snapshot.services.values()]
        stated: Mapping[str, Capacity] = {}
        try:
            stated = read_capacities(self._from.home / FILE)
        except CapacityError as error:
            problems.append(f"{error}; the convention stands in.")
        return series, {
            demand_series.name: stated.get(demand_series.name) or assumed_capacity(demand_series)
            for demand_series in series
        }

    def _calendar_clock(self, series: Sequence[DemandSeries]) -> float | None:
        """Now on the calendar of the histories: the wall's clock, or the newest bucket where all of it is past."""
        ends = [
            end
            for demand_series in series
            if demand_series.start_known and (end := last_value_s(demand_series)) is not None
        ]
        if not ends:
            return None
        now_s = self._clock()
        return now_s if 0 <= now_s - max(ends) <= LIVE_WITHIN_S else max(ends)

    async def _serving(self) -> tuple[tuple[ModelVersion, ...], str]:
        """The versions that answer, one per predictor, and what is wrong with the endpoint."""
        try:
            answer = await self._from.served.refresh()
        except FAILURES as error:
            return (), sentence(error)
        return tuple(model.model_version for model in answer.models if model.serving), ""


def _clock_of(series: DemandSeries, calendar_s: float | None) -> float:
    if series.start_known and calendar_s is not None:
        return calendar_s
    return float(series.times_s[-1] + series.step_s)


def _nothing() -> Snapshot:
    return Snapshot({}, Endpoint(""), 0.0, ready=False)


def _restrict(snapshot: Snapshot, holds: Holds) -> Snapshot:
    services = {name: service for name, service in snapshot.services.items() if holds(pods_of(name))}
    return replace(snapshot, services=services)


SNAPSHOT: Feed[Snapshot] = Feed("snapshot", _nothing, SnapshotReader, _restrict)
