"""Live services are known to a replica that has started and to a model that is promoted, before anybody asks."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from controlplane.processes import wait_for

from kopt.core.settings import Settings
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.live import open_histories
from kopt.features.rows import FeatureStoreError
from kopt.models.demand.memory import SeriesMemory
from kopt.serving.contract.schemas import PushRequest
from kopt.serving.demand import preparation
from kopt.serving.demand.live import LiveDemand
from kopt.serving.demand.preparation import Preparation
from kopt.serving.demand.series_cache import STORE, Memories
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.http.deadline import Deadline
from tests.serving.conftest import MemorySource, StandInModel


class RememberingModel(StandInModel):
    """Its memories know when they were made: ``state`` says of which model."""

    def __init__(self, version: str = "1") -> None:
        super().__init__(version)
        self.asked: list[list[str]] = []
        self.before_each: Callable[[], None] = lambda: None

    def memories(self, series: Sequence[DemandSeries]) -> list[SeriesMemory]:
        self.before_each()
        self.asked.append([each.name for each in series])
        made: Any = self.version.version
        return [SeriesMemory(state=made) for _ in series]

    @property
    def known(self) -> list[str]:
        return sorted(name for names in self.asked for name in names)


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Any]:
    histories = open_histories(Settings(home=tmp_path))
    yield histories
    histories.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Callable[[MemorySource], Endpoint]]:
    endpoints: list[Endpoint] = []

    def start(source: MemorySource) -> Endpoint:
        endpoints.append(assemble(Settings(home=tmp_path), Parts(source=source, refresh_s=3600)))
        endpoints[-1].start()
        return endpoints[-1]

    yield start
    for each in endpoints:
        each.stop()


def push(histories: Any, name: str, silent_buckets: int = 0, count: int = 20) -> None:
    end = int(time.time()) // GRID_S - silent_buckets
    buckets = np.arange(end - count, end)
    histories.merge(name, "", buckets, np.arange(1.0, count + 1.0))


def test_a_replica_that_starts_learns_what_was_pushed_to_others(
    endpoint: Callable[[MemorySource], Endpoint], histories: Any
) -> None:
    for name in ("chat", "search"):
        push(histories, name)
    push(histories, "silent for a day", silent_buckets=288)
    source, model = MemorySource(), RememberingModel()
    source.add(model)
    endpoint(source)
    wait_for(lambda: len(model.known) == 2, what="both live services are known")
    assert model.known == ["chat", "search"]


def test_a_promoted_model_answers_once_it_knows_the_live_services_and_the_old_one_until_then(
    endpoint: Callable[[MemorySource], Endpoint], histories: Any
) -> None:
    source, old, new = MemorySource(), RememberingModel("1"), RememberingModel("2")
    source.add(old)
    service = endpoint(source).service(DemandService)
    push(histories, "chat")
    serving: list[Any] = []
    new.before_each = lambda: serving.append(service.slot.current)
    source.add(new)
    service.refresh()
    assert (serving, new.known) == ([old], ["chat"])
    assert service.slot.current is new


def test_a_model_that_cannot_prepare_is_promoted_all_the_same(
    endpoint: Callable[[MemorySource], Endpoint], histories: Any
) -> None:
    source, new = MemorySource(), RememberingModel("2")
    source.add(RememberingModel("1"))
    service = endpoint(source).service(DemandService)
    push(histories, "chat")

    def fail() -> None:
        raise FeatureStoreError("the store does not answer")

    new.before_each = fail
    source.add(new)
    service.refresh()
    assert service.slot.current is new
    assert service.slot.error is None


def test_answers_that_came_first_keep_their_memories_and_there_is_room_for_the_old_models(histories: Any) -> None:
    for number in range(100):
        push(histories, f"s{number:03d}")
    live, memories, model = LiveDemand(lambda: histories), Memories(most=128), RememberingModel()
    (asked,) = live.histories(["s000"]).values()
    kept = memories.of(STORE, model.version, asked)
    answering: Any = "an answer"
    kept.memory = SeriesMemory(state=answering)
    assert Preparation(live, memories).run(model) == 64
    assert kept.memory.state == "an answer"
    assert "s000" not in model.known
    assert len(memories) == 64


def test_it_stops_at_its_time_and_when_the_replica_ends(histories: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_TOGETHER", 1)
    for name in ("a", "b", "c"):
        push(histories, name)
    live, model = LiveDemand(lambda: histories), RememberingModel()
    model.before_each = lambda: time.sleep(0.05)
    assert Preparation(live, Memories()).run(model, within_s=0.01) == 1
    ending = Preparation(live, Memories())
    model.before_each = ending.stop
    thread = threading.Thread(target=ending.run, args=[model])
    thread.start()
    thread.join(10)
    assert len(model.asked) == 2


async def test_a_history_that_is_pushed_is_known_before_anybody_asks(
    endpoint: Callable[[MemorySource], Endpoint], histories: Any
) -> None:
    source, model = MemorySource(), RememberingModel()
    source.add(model)
    service = endpoint(source).service(DemandService)

    async def sent(name: str, buckets: int) -> None:
        end_s = int(time.time()) // GRID_S * GRID_S
        times = [end_s - GRID_S * back for back in range(buckets, 0, -1)]
        await service.push(name, PushRequest(t=times, value=[1.0] * buckets), Deadline(time.monotonic() + 30, 30.0))

    await sent("a bucket, as each of five minutes", 1)
    model.before_each = lambda: time.sleep(0.2)
    for name in ("chat", "search", "translate"):
        await sent(name, 100)
    await asyncio.to_thread(wait_for, lambda: len(model.known) == 3, what="all three are known")
    assert model.known == ["chat", "search", "translate"]
    assert len(model.asked) < 3, "those that come meanwhile are prepared together"
