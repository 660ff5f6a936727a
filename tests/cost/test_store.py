"""The meter over its database, SQLite and PostgreSQL: crashes, a second meter, a database that is away."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import cast

import pytest

from kopt.cli.cost.commands import Row, answer
from kopt.cli.cost.reading import Source
from kopt.cluster.client.api import Kube
from kopt.controllers.meter.clock import SteadyClock
from kopt.controllers.meter.reconciler import Metering, MeterSettings
from kopt.controllers.meter.state import LiveCluster, Resources
from kopt.controllers.meter.store import CostStore, Overtaken
from kopt.core.cost.metering import Attributes, Demand, MeteredNode, MeteredPod, Rule
from kopt.core.cost.prices import shipped_prices
from kopt.policies.cost import Changes
from kopt.policies.cost.attribution import By
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.database.opening import Location

from .histories import H100

HOUR_S = 3600.0


class World:
    """What informers would have seen; time stands still unless it is moved."""

    def __init__(self) -> None:
        self.at_s = 1_770_000_000.0
        self.on: dict[str, MeteredNode] = {"n": MeteredNode("n", "node-n", 8, H100)}
        self.there: dict[str, MeteredPod] = {}
        self.gone: dict[str, int] = {}

    @property
    def ms(self) -> int:
        return int(self.at_s * 1000)

    def add(self, uid: str, gpus: int = 2, namespace: str = "ml") -> None:
        attributes = Attributes(namespace, f"pod-{uid}", f"jobs/{uid}", "gpus", {"team": "vision"})
        self.there[uid] = MeteredPod(uid, "node-n", Demand(gpus), self.ms, attributes=attributes)

    def nodes(self) -> Mapping[str, MeteredNode]:
        return self.on

    def pods(self) -> list[MeteredPod]:
        return list(self.there.values())

    @property
    def departed(self) -> Mapping[str, int]:
        return dict(self.gone)

    def settled(self, departed: Mapping[str, int]) -> None:
        for uid in departed:
            self.gone.pop(uid, None)

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.at_s, lambda: self.at_s)


Life = Callable[[], Metering]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(where: Location) -> Iterator[CostStore]:
    result = CostStore(where)
    yield result
    result.close()


def life(world: World, store: CostStore, name: str = "first") -> Metering:
    return Metering(world, store, MeterSettings(), world.clock(), name)


def step(metering: Metering) -> None:
    asyncio.run(metering.step())


def hours(store: CostStore, world: World) -> dict[str, float]:
    usages = store.usages(store.window(0, world.ms), shipped_prices())
    result: dict[str, float] = {}
    for usage in usages:
        result[usage.subject] = result.get(usage.subject, 0.0) + usage.used / 3.6e9
    return result


def test_the_sum_closes_over_a_crash_and_a_lost_end(world: World, store: CostStore) -> None:
    first = life(world, store)
    world.add("a")
    world.add("b", 1)
    step(first)
    world.at_s += HOUR_S
    step(first)
    # It dies; a ends unseen, c comes.
    world.at_s += HOUR_S
    del world.there["a"]
    world.add("c", 4)
    world.at_s += HOUR_S
    second = life(world, store, "second")
    step(second)
    assert hours(store, world) == {
        "a": pytest.approx(2.0),
        "b": pytest.approx(3.0),
        "c": pytest.approx(4.0),
        "idle:unallocated": pytest.approx(5.0),
        "idle:unobserved": pytest.approx(2 * 7 - 4),
    }
    capacity = sum(usage.used for usage in store.capacities(store.window(0, world.ms), shipped_prices()))
    assert capacity == sum(usage.used for usage in store.usages(store.window(0, world.ms), shipped_prices()))
    assert second.last is not None
    assert second.last.unreconciled == 0
    assert second.last.attribution_error == 0.0


def test_storing_again_changes_nothing(world: World, store: CostStore) -> None:
    metering = life(world, store)
    world.add("a")
    step(metering)
    world.at_s += 60
    world.there["a"] = replace(world.there["a"], ended_ms=world.ms - 10_000)
    for _ in range(3):
        step(metering)
    for name in ("second", "third"):
        world.at_s += 60
        step(life(world, store, name))
    assert hours(store, world)["a"] == pytest.approx(2 * 50 / HOUR_S)


def test_a_second_meter_ends_the_first(world: World, store: CostStore) -> None:
    first = life(world, store)
    step(first)
    second = life(world, store, "second")
    step(second)
    with pytest.raises(Overtaken):
        store.store("first", Changes(), world.ms + 1)
    world.add("a")
    step(first)
    assert first.errors == 1, "what it saw is not stored"
    step(second)
    world.at_s += 36
    step(second)
    assert hours(store, world)["a"] == pytest.approx(0.02)


def test_what_the_database_did_not_take_is_stored_later(
    world: World, store: CostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    metering = life(world, store)
    step(metering)

    def away(*_: object) -> None:
        raise DatabaseError("away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "store", away)
        world.add("a")
        world.at_s += 36
        step(metering)
        assert metering.errors == 1
        del world.there["a"]
        world.gone["a"] = world.ms
    world.at_s += 36
    step(metering)
    assert "a" not in hours(store, world), "it came and went, and its object is gone"
    total = sum(hours(store, world).values())
    assert total == pytest.approx(8 * 72 / HOUR_S)


def test_what_is_old_is_forgotten(world: World, store: CostStore) -> None:
    metering = Metering(world, store, MeterSettings(keep_s=HOUR_S), world.clock(), "first")
    world.add("a")
    step(metering)
    world.at_s += HOUR_S
    del world.there["a"]
    step(metering)
    world.at_s += 3 * HOUR_S
    step(metering)
    assert "a" not in hours(store, world)
    assert "a" not in store.attributes()
    assert store.attributes() == {}


def test_a_pod_that_comes_and_goes_between_two_passes_is_metered() -> None:
    clock = SteadyClock(lambda: 1000.0, lambda: 0.0)
    cluster = LiveCluster(cast("Kube", None), (), clock, Resources())
    pods, nodes = cluster.informers[0], cluster.informers[1]
    node = {"metadata": {"name": "n", "uid": "n"}, "status": {"capacity": {"nvidia.com/gpu": "4"}}}
    spec = {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    pod = {"metadata": {"name": "p", "namespace": "ml", "uid": "p", "creationTimestamp": "1970-01-01T00:16:00Z"}}
    nodes._put(("", "n"), node)
    pods._put(("ml", "p"), pod | {"spec": spec})
    pods._remove(("ml", "p"))
    (metered,) = cluster.pods()
    assert (metered.started_ms, metered.ended_ms) == (960_000, 1_000_000)
    departed = cluster.departed
    assert departed == {"p": 1_000_000}
    cluster.settled(departed)
    assert cluster.pods() == []


def test_what_a_step_of_a_training_costs(world: World, store: CostStore) -> None:
    """One that was stopped at step 600 and resumed at 500."""
    metering = life(world, store)
    world.add("a", 4)
    step(metering)
    world.at_s += HOUR_S
    first = world.there["a"]
    world.there["a"] = replace(first, attributes=replace(first.attributes, first_step=0, last_step=600))
    step(metering)
    again = replace(first.attributes, pod="pod-b", first_step=500, last_step=2000)
    world.there = {"b": MeteredPod("b", "node-n", Demand(4), world.ms, attributes=again)}
    world.at_s += HOUR_S
    step(metering)
    answered = answer(Source(store, store.window(0, world.ms), shipped_prices()), By.WORKLOAD)
    (row,) = [row for row in answered.rows if isinstance(row, Row) and row.name == "ml/jobs/a"]
    assert (row.steps, row.gpu_hours, row.micro) == (2000, 8.0, 8 * 3_990_000)
    assert row.micro_per_step == 8 * 3_990_000 // 2000


def test_the_rule_is_kept_for_whoever_reads(world: World, store: CostStore) -> None:
    step(Metering(world, store, MeterSettings(rule=Rule.MEMORY), world.clock(), "first"))
    assert store.rule() is Rule.MEMORY
