"""A served endpoint in process: the real application over a stand-in model and an in-memory registry."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.data.demand.table import DemandSeries
from kopt.features.rows import FeatureStoreError
from kopt.models.demand.memory import SeriesMemory
from kopt.models.registry.registry import NotRegisteredError, RegisteredModel, RegistryError
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble

URL = "http://endpoint"


class StandInModel:
    """Last value times a factor; the endpoint does not care where numbers come from."""

    def __init__(self, version: str = "1", factor: float = 1.0) -> None:
        self.version = ModelVersion("demand", version, digest_of(version))
        self.factor = factor
        self.before: Callable[[DemandSeries], None] = lambda _: None

    def forecast(
        self,
        series: DemandSeries,
        horizons_s: Sequence[int],
        quantiles: Sequence[float],
        *,
        calibration: Any = None,
        now_s: float | None = None,
    ) -> tuple[Prediction, ...]:
        self.before(series)
        known = series.value[np.isfinite(series.value)]
        if not len(known):
            reason = Reason("TOO_SHORT", "There are gaps only; send values.")
            return tuple(
                Prediction.refusal(reason, unit=series.unit, model=self.version, horizon_s=float(h)) for h in horizons_s
            )
        last = float(known[-1]) * self.factor
        levels = {q: last * (0.5 + q) if q > 0.5 else last for q in quantiles}
        return tuple(
            Prediction(
                last,
                last * 0.5,
                last * 1.5,
                0.9,
                series.unit,
                0.8,
                self.version,
                (Reason("LAST", "Last."),),
                levels,
                float(series.times_s[-1]),
                float(h),
            )
            for h in horizons_s
        )

    def memories(self, series: Sequence[DemandSeries]) -> list[SeriesMemory]:
        """It remembers nothing."""
        return [SeriesMemory() for _ in series]


def digest_of(version: str) -> str:
    return version.rjust(64, "0")


@dataclass
class MemorySource:
    """A registry in memory. ``broken`` versions cannot be loaded."""

    models: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    down: bool = False
    loads: list[str] = field(default_factory=list)

    def add(self, model: StandInModel, alias: str = "champion") -> None:
        self.models[model.version.version] = model
        self.aliases[alias] = model.version.version

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        if self.down:
            raise RegistryError("no connection")
        if name != "demand" or alias not in self.aliases:
            raise NotRegisteredError(f"{name} has no {alias}")
        return self._registered(name, self.aliases[alias])

    def load(self, name: str, version: str) -> Any:
        self.loads.append(version)
        if version in self.broken:
            raise RegistryError(f"{name} version {version} is refused: no trusted signature")
        return self.models[version]

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        if self.down:
            raise RegistryError("no connection")
        return tuple(self._registered(name, version) for version in self.models if name == "demand")

    def _registered(self, name: str, version: str) -> RegisteredModel:
        aliases = tuple(alias for alias, v in self.aliases.items() if v == version)
        return RegisteredModel(name, version, digest_of(version), "run", 0.0, aliases)


@pytest.fixture
def model() -> StandInModel:
    return StandInModel()


@pytest.fixture
def source(model: StandInModel) -> MemorySource:
    found = MemorySource()
    found.add(model)
    return found


def no_store() -> Any:
    raise FeatureStoreError("there is no store in this test")


@pytest.fixture
def endpoint(source: MemorySource, tmp_path: Path) -> Iterator[Endpoint]:
    """Started, with the aliases read when the test says so."""
    built = assemble(Settings(home=tmp_path), Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600))
    built.start()
    yield built
    built.stop()


@pytest.fixture
def application(endpoint: Endpoint) -> FastAPI:
    """One for all examples of a test: building it takes longer than to answer."""
    return create_app(endpoint, manage=False)


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client of the endpoint; errors of the application are answers, not exceptions."""
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    # On a busy machine the default deadline passes, and the fallback answers.
    patient = {DEADLINE_HEADER: "30000"}
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers=patient) as client:
        yield client


def history(values: Sequence[float | None] = (10.0, 12.0, 11.0), *, step_s: int = 300, **more: Any) -> dict[str, Any]:
    """One series of a request body."""
    return {"name": "chat", "t": [i * step_s for i in range(len(values))], "value": list(values), **more}


def wave(buckets: int, seed: int = 0) -> list[float]:
    """A daily shape with noise in five-minute buckets."""
    day = 100 + 60 * np.sin(np.arange(buckets) / 288 * 2 * np.pi)
    noisy: list[float] = (day + np.random.default_rng(seed).normal(0, 3, buckets)).clip(0).tolist()
    return noisy
