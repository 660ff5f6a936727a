"""Versions of the registry and the endpoint's report on their health."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.dashboard.data.access import Holds, pods_in, pods_of
from kopt.dashboard.data.feed import FAILURES, Connections, Feed, sentence
from kopt.models.predictors import predictor_names
from kopt.models.registry.registry import CHALLENGER, CHAMPION, MetricRow, RegisteredModel, RegistryError
from kopt.serving.contract.model_answers import IntervalHealthOut, ModelHealthResponse, SeriesHealthOut

PREDICTOR = "demand"
_EVENT_REASONS = ("MODEL_REFUSED", "CANARY_STOPPED", "DRIFT_ALARM", "INTERVALS_MISS")


@dataclass(frozen=True)
class Models:
    """The registry's versions of demand, newest first, and the health report, each with what kept it away."""

    versions: tuple[RegisteredModel, ...] = ()
    metrics: tuple[MetricRow, ...] = ()
    """Champion and challenger side by side, in this order."""
    compared: tuple[RegisteredModel, ...] = ()
    health: ModelHealthResponse | None = None
    measured: tuple[IntervalHealthOut, ...] = ()
    """Sizes and bandwidths beside what was measured."""
    refused: tuple[Reason, ...] = ()
    problems: tuple[str, ...] = field(default_factory=tuple)
    others: tuple[RegisteredModel, ...] = ()
    """Versions of the other predictors."""
    serving: tuple[ModelVersion, ...] = ()
    """The versions that the endpoint answers with, one per predictor."""
    canaries: Mapping[ModelVersion, int] = field(default_factory=dict)
    """Challengers on trial, with the percentage of questions that each answers."""


class ModelsReader:
    """Asks registry and endpoint; the first time MLflow is loaded, which takes seconds."""

    def __init__(self, connections: Connections) -> None:
        self._client, self._registry, self._served = connections.client, connections.registry, connections.served
        self._models = Models(problems=("The model registry is being asked.",))

    async def latest(self) -> Models:
        return self._models

    async def refresh(self) -> None:
        problems: list[str] = []
        health: ModelHealthResponse | None = None
        measured: tuple[IntervalHealthOut, ...] = ()
        try:
            measured = (await self._client.predictors_health()).predictors
            health = await self._client.model_health()
        except FAILURES as error:
            problems.append(f"No health report from the endpoint: {sentence(error)}")
        registered = await asyncio.to_thread(self._registered, problems)
        served = self._served.models
        self._models = replace(
            registered,
            health=health,
            measured=measured,
            refused=tuple(reason for reason in served.refused if reason.code in _EVENT_REASONS) if served else (),
            problems=tuple(problems),
            serving=tuple(model.model_version for model in served.models if model.serving) if served else (),
            canaries={model.model_version: model.canary_percent for model in served.models if model.canary_percent}
            if served
            else {},
        )

    def _registered(self, problems: list[str]) -> Models:
        """The versions of the registry, without the health report."""
        if self._registry is None:
            return Models()
        try:
            versions = self._registry.list(PREDICTOR)
            compared = tuple(model for alias in (CHAMPION, CHALLENGER) for model in versions if alias in model.aliases)
            metrics = self._registry.compare(PREDICTOR, [model.version for model in compared]) if compared else ()
            others = [model for name in predictor_names() if name != PREDICTOR for model in self._registry.list(name)]
        except RegistryError as error:
            problems.append(f"The model registry does not answer: {error}")
            return Models()
        return Models(versions, metrics, compared, others=tuple(others))


def _restrict(models: Models, holds: Holds) -> Models:
    """Versions are for everybody; how a service is predicted is for those who see it."""
    measured = tuple(
        replace(entry, newest=tuple(each for each in entry.newest if holds(pods_in(each.namespace))))
        for entry in models.measured
    )
    models = replace(models, measured=measured)
    if models.health is None:
        return models

    def visible(series: tuple[SeriesHealthOut, ...]) -> tuple[SeriesHealthOut, ...]:
        return tuple(each for each in series if holds(pods_of(each.name)))

    health = replace(models.health, series=visible(models.health.series), shadow=visible(models.health.shadow))
    return replace(models, health=health)


MODELS: Feed[Models] = Feed("models", Models, ModelsReader, _restrict)
