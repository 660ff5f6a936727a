"""The platform's own ``Source``: histories from KOPT_HOME, forecasts from the endpoint, versions from the registry."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kopt.core.overview import Overview
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.dashboard.capacity import FILE, Capacity, CapacityError, assumed_capacity, read_capacities
from kopt.dashboard.forecasting import Asks, Forecasts
from kopt.dashboard.histories import Histories, last_value_s
from kopt.dashboard.replay import PAST_KEPT, Replays
from kopt.dashboard.sources import Cluster, Endpoint, Jobs, Models, Nodes, Pairs, Past, Service, Sizes, Snapshot
from kopt.data.demand.table import DemandDataError, DemandSeries
from kopt.models.catalogue import PREDICTORS
from kopt.models.registry import CHALLENGER, CHAMPION, MetricRow, RegisteredModel, RegistryError
from kopt.serving.answers import AnswerError, ModelHealth, ServedModel, ServedModels
from kopt.serving.bandwidth_pairs_answers import ClusterPairs
from kopt.serving.checkpoint_answers import FollowedJobs
from kopt.serving.client import EndpointFailure, RequestRefused
from kopt.serving.size_advice import SizeAdvice

LOG = logging.getLogger(__name__)
PREDICTOR = "demand"
PATIENCE_S = 2.5
"""How long a page waits for replayed forecasts; later ones appear when it refreshes."""
UNWELL_REFRESH_S = 2.0
"""How often an endpoint that does not answer is asked: a page opened while it starts should not stay wrong for long."""
NODES_EVERY_S = 60.0
"""What links GPUs changes rarely, and a list of thousands of nodes is megabytes."""
PAIRS_EVERY_S = 60.0
"""As for nodes: pairs are measured over hours."""
MOST_CLUSTERS = 8
LIVE_WITHIN_S = 3600.0
"""Histories whose newest bucket is older than this are a replay: their own end is then their now."""


class Client(Asks, Protocol):
    """The part of ``AsyncPredictionClient`` that the pages use."""

    async def models(self, *, deadline_s: float | None = None) -> ServedModels: ...

    async def model_health(self, *, deadline_s: float | None = None) -> ModelHealth: ...

    async def sizes(self, *, deadline_s: float | None = None) -> tuple[SizeAdvice, ...]: ...

    async def jobs(self, *, deadline_s: float | None = None) -> FollowedJobs: ...

    async def pairs(self, cluster: str | None = None, *, deadline_s: float | None = None) -> ClusterPairs: ...


class Versions(Protocol):
    """The part of ``models.registry.Registry`` that the pages use; every method may block."""

    def list(self, name: str) -> tuple[RegisteredModel, ...]: ...

    def compare(self, name: str, versions: Sequence[str] = ...) -> tuple[MetricRow, ...]: ...


class LiveSource:
    """Refreshes in the background (``run``); pages read the newest snapshot and never wait for it."""

    def __init__(self, histories: Histories, client: Client, registry: Versions | None, *, url: str, home: Path,
                 clock: Callable[[], float] = time.time, patience_s: float = PATIENCE_S,
                 cluster: Cluster | None = None) -> None:  # fmt: skip
        self._histories, self._client, self._registry = histories, client, registry
        self._url, self._home, self._clock, self._patience_s = url, home, clock, patience_s
        self._forecasts, self._replays = Forecasts(client), Replays(client)
        self._snapshot = Snapshot({}, Endpoint(url), clock(), ready=False)
        self._refused: tuple[Reason, ...] = ()
        self._answering: tuple[ModelVersion, ...] = ()
        self._sizes = Sizes()
        self._jobs = Jobs()
        self._cluster, self._nodes = cluster, Nodes(cluster=cluster is not None)
        self._nodes_next_s = 0.0
        self._pairs, self._pairs_next_s = Pairs(), 0.0
        self._models = Models(problems=("The model registry is being asked.",))
        self._past_lock = asyncio.Lock()
        self._past: dict[str, tuple[tuple[float, ModelVersion | None], asyncio.Task[Past]]] = {}

    async def run(self, every_s: float) -> None:
        """Refresh until cancelled. What is unforeseen is logged and shown; the pages live on."""
        while True:
            try:
                await asyncio.gather(self.refresh(), self.refresh_models(), self.refresh_sizes(),
                                     self.refresh_jobs(), self.refresh_nodes(), self.refresh_pairs())  # fmt: skip
            except Exception:  # the background's own edge
                LOG.exception("refresh failed")
                problem = "The pages could not refresh their data; their log says why."
                old = self._snapshot
                self._snapshot = replace(old, problems=(problem,))
            await asyncio.sleep(min(every_s, UNWELL_REFRESH_S) if self._snapshot.endpoint.problem else every_s)

    async def refresh(self) -> None:
        """One round: read histories, ask the endpoint, swap the snapshot."""
        problems: list[str] = []
        series, capacities = await asyncio.to_thread(self._read, problems)
        clock_s = self._calendar_clock(series)
        model, trouble = await self._serving()
        version = model.version if model else None
        if not trouble:
            self._forecasts.forget_troubles()

        def publish(*, ready: bool, failed: str = "") -> None:
            self._publish(series, capacities, clock_s, Endpoint(self._url, trouble or failed, version), problems, ready)

        publish(ready=self._snapshot.ready)
        # Pages fill as batches come in: a fresh endpoint takes seconds to learn each service.
        failed = await self._forecasts.refresh(series, clock_s, version, lambda: publish(ready=self._snapshot.ready))
        publish(ready=True, failed=failed)

    def _publish(self, series: Sequence[DemandSeries], capacities: Mapping[str, Capacity], clock_s: float | None,
                 endpoint: Endpoint, problems: Sequence[str], ready: bool) -> None:  # fmt: skip
        services = {
            one.name: Service(one, self._forecasts.of(one.name), capacities[one.name], _clock_of(one, clock_s))
            for one in series
        }
        is_past = clock_s is not None and self._clock() - clock_s > LIVE_WITHIN_S
        ended_s = clock_s if is_past else None
        self._snapshot = Snapshot(services, endpoint, self._clock(), tuple(problems), ended_s, ready)

    def _read(self, problems: list[str]) -> tuple[Sequence[DemandSeries], Mapping[str, Capacity]]:
        try:
            series = self._histories.read()
        except DemandDataError as error:
            problems.append(f"Demand histories cannot be read: {error}")
            series = [service.series for service in self._snapshot.services.values()]
        stated: Mapping[str, Capacity] = {}
        try:
            stated = read_capacities(self._home / FILE)
        except CapacityError as error:
            problems.append(f"{error}; the convention stands in.")
        return series, {one.name: stated.get(one.name) or assumed_capacity(one) for one in series}

    def _calendar_clock(self, series: Sequence[DemandSeries]) -> float | None:
        """Now on the calendar of the histories: the wall's clock, or the newest bucket where all of it is past."""
        ends = [end for one in series if one.start_known and (end := last_value_s(one)) is not None]
        if not ends:
            return None
        now_s = self._clock()
        return now_s if 0 <= now_s - max(ends) <= LIVE_WITHIN_S else max(ends)

    async def _serving(self) -> tuple[ServedModel | None, str]:
        """The version that answers, and what is wrong with the endpoint."""
        try:
            known = await self._client.models()
        except (EndpointFailure, AnswerError, RequestRefused) as error:
            return None, _sentence(error)
        self._refused = known.refused
        self._answering = tuple(model.version for model in known.models if model.serving)
        serving = [model for model in known.models if model.serving and model.version.name == PREDICTOR]
        return (serving[0], "") if serving else (None, "")

    async def snapshot(self) -> Snapshot:
        return self._snapshot

    async def past(self, service: Service) -> Past:
        """Replayed forecasts; what takes longer than a reader's patience is finished in the background."""
        made = (float(service.series.times_s[-1]), self._snapshot.endpoint.model)
        held = self._past.get(service.name)
        if held is None or held[0] != made or (held[1].done() and _failed(held[1])):
            while len(self._past) >= PAST_KEPT:
                self._past.pop(next(iter(self._past)))[1].cancel()
            held = (made, asyncio.create_task(self._replay(service)))
            self._past[service.name] = held
        done, _ = await asyncio.wait([held[1]], timeout=self._patience_s)
        if not done:
            return Past(problem="The model is being asked about the last two days.", pending=True)
        return held[1].result()

    async def _replay(self, service: Service) -> Past:
        endpoint = self._snapshot.endpoint
        if endpoint.problem:
            return Past(problem="The endpoint does not answer, so earlier forecasts cannot be asked for.")
        # One at a time: the pages must not crowd out the endpoint's other callers.
        async with self._past_lock:
            return await self._replays.of(service.series, endpoint.model)

    async def models(self) -> Models:
        return self._models

    async def sizes(self) -> Sizes:
        return self._sizes

    async def refresh_sizes(self) -> None:
        """Ask the endpoint; what was known before stays where it does not answer."""
        try:
            self._sizes = Sizes(await self._client.sizes())
        except (EndpointFailure, AnswerError, RequestRefused) as error:
            self._sizes = replace(self._sizes, problem=_sentence(error))

    async def jobs(self) -> Jobs:
        return self._jobs

    async def refresh_jobs(self) -> None:
        """As for sizes."""
        try:
            known = await self._client.jobs()
            self._jobs = Jobs(known.jobs, known.now_s)
        except (EndpointFailure, AnswerError, RequestRefused) as error:
            self._jobs = replace(self._jobs, problem=_sentence(error))

    async def nodes(self) -> Nodes:
        return self._nodes

    async def refresh_nodes(self) -> None:
        """As for sizes; nothing where the pages have no cluster."""
        if self._cluster is None or self._clock() < self._nodes_next_s:
            return
        self._nodes_next_s = self._clock() + NODES_EVERY_S
        known = await self._cluster.nodes()
        self._nodes = known if known.found or not known.problem else replace(self._nodes, problem=known.problem)

    async def overview(self) -> Overview:
        return Overview(now_s=self._clock()) if self._cluster is None else self._cluster.overview()

    async def pairs(self) -> Pairs:
        return self._pairs

    async def refresh_pairs(self) -> None:
        """As for sizes."""
        if self._clock() < self._pairs_next_s:
            return
        try:
            names = (await self._client.pairs()).clusters
            found = [await self._client.pairs(name) for name in names[:MOST_CLUSTERS]]
            self._pairs = Pairs(tuple(found))
            self._pairs_next_s = self._clock() + PAIRS_EVERY_S
        except (EndpointFailure, AnswerError, RequestRefused) as error:
            self._pairs = replace(self._pairs, problem=_sentence(error))

    async def refresh_models(self) -> None:
        """Ask registry and endpoint; the first time MLflow is loaded, which takes seconds."""
        self._models = await self._ask_models()

    async def _ask_models(self) -> Models:
        problems: list[str] = []
        health: ModelHealth | None = None
        try:
            health = await self._client.model_health()
        except (EndpointFailure, AnswerError, RequestRefused) as error:
            problems.append(f"No health report from the endpoint: {_sentence(error)}")
        registered = await asyncio.to_thread(self._ask_registry, problems)
        refused = tuple(reason for reason in self._refused if reason.code == "MODEL_REFUSED")
        return replace(registered, health=health, refused=refused, problems=tuple(problems), serving=self._answering)

    def _ask_registry(self, problems: list[str]) -> Models:
        """What the registry knows; nothing of the health report."""
        if self._registry is None:
            return Models()
        try:
            versions = self._registry.list(PREDICTOR)
            compared = tuple(model for alias in (CHAMPION, CHALLENGER) for model in versions if alias in model.aliases)
            metrics = self._registry.compare(PREDICTOR, [m.version for m in compared]) if compared else ()
            others = [model for name in PREDICTORS if name != PREDICTOR for model in self._registry.list(name)]
        except RegistryError as error:
            problems.append(f"The model registry does not answer: {error}")
            return Models()
        return Models(versions, metrics, compared, others=tuple(others))


def _failed(task: "asyncio.Task[Past]") -> bool:
    return task.cancelled() or task.exception() is not None or bool(task.result().problem)


def _clock_of(series: DemandSeries, calendar_s: float | None) -> float:
    if series.start_known and calendar_s is not None:
        return calendar_s
    return float(series.times_s[-1] + series.step_s)


def _sentence(error: Exception) -> str:
    return error.reason.message if isinstance(error, EndpointFailure) else f"{error}"
