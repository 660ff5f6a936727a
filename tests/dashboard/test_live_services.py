"""Services whose demand is pushed are shown as it is known now, and asked about by name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.dashboard.data.forecasting import Forecasts, batches
from kopt.dashboard.data.histories import LIVE_WITHIN_S, LiveServices
from kopt.data.demand.table import GRID_S, DemandDataError, DemandSeries
from kopt.features.live import LiveHistories, open_histories
from kopt.features.rows import FeatureStoreError
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, HorizonForecast, SeriesForecast
from tests.dashboard.conftest import RatioModel

NOW_S = 1_764_104_400.0
BUCKET = int(NOW_S // GRID_S)


@dataclass
class Folder:
    series: list[DemandSeries] = field(default_factory=list)
    live: tuple[str, ...] = ()

    def read(self) -> list[DemandSeries]:
        return self.series


def of(name: str, value: float = 1.0) -> DemandSeries:
    return DemandSeries(name, NOW_S - 600, GRID_S, np.full(2, value), start_known=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveHistories]:
    store = open_histories(Settings(home=tmp_path))
    yield store
    store.close()


@pytest.fixture
def push(store: LiveHistories) -> Callable[..., None]:
    def push(name: str, value: float, ended: int = BUCKET) -> None:
        store.merge(name, "", np.arange(ended - 20, ended), np.full(20, value))

    return push


def test_what_is_pushed_is_shown_before_files_and_only_while_it_is_pushed(
    store: LiveHistories, push: Callable[..., None]
) -> None:
    now_s = NOW_S
    services = LiveServices(Folder([of("ml/chat"), of("files")]), lambda: store, clock=lambda: now_s)
    push("ml/chat", 7.0)
    push("silent", 1.0, BUCKET - int(LIVE_WITHIN_S // GRID_S) - 1)
    series = {each.name: each.value[-1] for each in services.read()}
    assert series == {"ml/chat": 7.0, "files": 1.0}
    assert set(services.live) == {"ml/chat"}
    push("ml/search", 3.0)
    assert len(services.read()) == 2, "read again after a minute"
    now_s += 60.0
    assert {each.name for each in services.read()} == {"ml/chat", "ml/search", "files"}
    now_s += 2 * LIVE_WITHIN_S
    assert {each.name: each.value[-1] for each in services.read()} == {"ml/chat": 1.0, "files": 1.0}
    assert not services.live


def test_a_store_that_is_away_is_said_and_asked_again() -> None:
    def away() -> Any:
        raise FeatureStoreError("Redis does not answer")

    services = LiveServices(Folder([of("files")]), away)
    for _ in range(2):
        with pytest.raises(DemandDataError, match="Redis does not answer"):
            services.read()


class Endpoint:
    def __init__(self) -> None:
        self.asked: list[DemandQuery] = []

    async def demand(self, query: DemandQuery, *, deadline_s: float | None = None) -> DemandForecast:
        self.asked.append(query)
        model = RatioModel()
        series = tuple(
            SeriesForecast(
                history.name,
                "requests",
                GRID_S,
                tuple(
                    HorizonForecast(int(each.horizon_s), each)
                    for each in model.forecast(of(history.name), query.horizons_s, query.quantiles)
                ),
            )
            for history in query.series
        )
        return DemandForecast(series, ModelVersion("demand", "1", ""))


async def test_live_services_are_asked_about_by_name_and_others_with_their_history() -> None:
    endpoint, series = Endpoint(), [of("ml/chat"), of("files"), of("ml/search")]
    await Forecasts(endpoint).refresh(series, NOW_S, None, live={"ml/chat", "ml/search"})
    by_name, with_history = endpoint.asked
    assert [(each.name, len(each.t)) for each in by_name.series] == [("ml/chat", 0), ("ml/search", 0)]
    assert by_name.now_s is None, "the endpoint's own clock"
    assert [(each.name, len(each.t)) for each in with_history.series] == [("files", 2)]
    assert with_history.now_s == NOW_S
    assert [[each.name for each in batch] for batch in batches(series, {"files"})] == [
        ["ml/chat", "ml/search"],
        ["files"],
    ]
