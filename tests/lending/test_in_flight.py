"""Pools, queues and jobs that people change while GPUs are lent; two pools that want the same queue."""

import asyncio
import json

import pytest

from kopt.cluster.client.resources import JOBS, KUEUE_CLUSTER_QUEUES, KUEUE_WORKLOADS, LENDING_POOLS
from kopt.cluster.objects.custom.lending_pool import pool_of
from kopt.controllers.lending.forecasts import Forecasts
from kopt.core.scheduling.lending_pool import ForecastState
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery

from .in_memory import GPU, World, stamp


def lending(**spec: object) -> World:
    """Eight GPUs, of which a service needs two; four of the others are used by two jobs."""
    world = World()
    world.queue()
    world.pool(**spec)
    world.demand = {"serving/chat": 2.0}
    for name in ("one", "two"):
        world.submit(name, 2)
    world.lives(2)
    assert (world.quota(), world.runs()) == (6, {"one", "two"})
    return world


def test_the_world_lends_takes_back_and_returns() -> None:
    world = lending()
    world.demand["serving/chat"] = 7.0
    world.lives(3)
    assert (world.quota(), world.runs(), len(world.held())) == (1, set(), 3)
    world.demand["serving/chat"] = 2.0
    world.lives(4)
    assert (world.quota(), world.runs(), world.held()) == (6, {"one", "two"}, {"lent"})


def test_a_queue_that_two_pools_name_borrows_of_the_older_one() -> None:
    world = lending()
    world.demand["serving/other"] = 6.0
    world.pool(
        "another",
        gpus=8,
        services=[
            {
                "name": "other",
                "namespace": "serving",
                "capacityPerGpu": 1,
                "selector": {"matchLabels": {"app": "other"}},
            }
        ],
    )
    quotas = []
    for _ in range(4):
        world.lives(1)
        quotas.append(world.quota())
    assert (quotas, world.runs()) == ([6] * 4, {"one", "two"})
    ready = next(one for one in world.status("another")["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Claimed")
    assert "LendingPool chat" in ready["message"]
    world.delete(LENDING_POOLS, "chat")
    world.lives(4)
    assert (world.quota(), len(world.runs())) == (2, 1), "then it borrows of the other"
    world.delete(LENDING_POOLS, "another")
    world.lives(2)
    assert (world.quota(), world.held()) == (0, set()), "and has what it owns in the end"


@pytest.mark.parametrize("twice", [{"flavor": ""}, {"flavor": "h100"}])
def test_a_queue_that_a_pool_names_twice_is_lent_to_once(twice: dict[str, str]) -> None:
    world = World()
    world.queue()
    world.demand = {"serving/chat": 2.0}
    world.pool(borrowers=[{"system": "Kueue", "queue": "lent"}, {"system": "Kueue", "queue": "lent", **twice}])
    for name in ("one", "two", "three", "four"):
        world.submit(name, 2)
    world.lives(4)
    assert (world.quota(), len(world.runs())) == (6, 3)


def test_flavours_of_a_queue_borrow_of_pools_of_their_own_and_keep_what_they_own() -> None:
    world = World()
    world.queue(quotas={"a100": "3", "h100": "1"})
    for name in ("a100", "h100"):
        world.demand[f"serving/{name}"] = 2.0
        world.pool(name, borrowers=[{"system": "Kueue", "queue": "lent", "flavor": name}])
    world.lives(4)
    assert (world.quota(flavor="a100"), world.quota(flavor="h100")) == (9, 7)
    for name in ("a100", "h100"):
        world.demand[f"serving/{name}"] = 4.0
    world.lives(4)
    assert (world.quota(flavor="a100"), world.quota(flavor="h100")) == (7, 5)
    world.demand["serving/h100"] = 8.0
    world.lives(3)
    assert (world.quota(flavor="a100"), world.quota(flavor="h100")) == (7, 1)
    assert world.held() == {"lent"}, "the other flavour has more than it owns"
    world.delete(LENDING_POOLS, "a100")
    world.delete(LENDING_POOLS, "h100")
    world.lives(2)
    assert (world.quota(flavor="a100"), world.quota(flavor="h100"), world.held()) == (3, 1, set())


@pytest.mark.parametrize("change", [{"cohort": "all"}, {"cohortName": "all"}, "flavours"])
def test_a_queue_that_cannot_borrow_any_more_gives_back_what_it_was_lent(change: object) -> None:
    world = lending()
    world.demand["serving/chat"] = 5.0
    world.lives(3)
    assert len(world.held() - {"lent"}) == 1
    queue = world.get(KUEUE_CLUSTER_QUEUES, "lent")
    if isinstance(change, dict):
        queue["spec"] |= change
    else:
        flavors = queue["spec"]["resourceGroups"][0]["flavors"]
        flavors.append({"name": "b200", "resources": [{"name": GPU, "nominalQuota": "4"}]})
    world.put(KUEUE_CLUSTER_QUEUES, queue)
    world.lives(2)
    assert world.quota() == 0
    assert world.held() == set(), "nobody waits for a pool that lends nothing to its queue"


def test_one_that_another_cluster_decides_about_is_not_stopped_here() -> None:
    world = lending()
    copied = world.get(KUEUE_WORKLOADS, "one", "team")
    copied["metadata"]["labels"] = {"kueue.x-k8s.io/multikueue-origin": "hub"}
    world.put(KUEUE_WORKLOADS, copied)
    world.demand["serving/chat"] = 5.0
    world.lives(2)
    assert world.held() - {"lent"} == {"two"}


def test_one_whom_the_server_lets_nobody_stop_does_not_keep_the_others() -> None:
    world = lending()
    world.refuses = {"one"}
    world.demand["serving/chat"] = 5.0
    world.lives(1)
    assert world.held() == {"lent"}, "the first of them was chosen"
    world.life(steps=3)
    assert world.held() == {"lent", "two"}


def test_one_whom_the_server_lets_nobody_resume_does_not_keep_the_others() -> None:
    world = lending()
    world.demand["serving/chat"] = 8.0
    world.lives(3)
    assert world.held() == {"one", "two"}
    world.refuses = {"one"}
    world.demand["serving/chat"] = 2.0
    for _ in range(2):
        world.life(steps=3)
        world.kueue()
        world.now_s += 60.0
    assert (world.quota(), world.runs()) == (6, {"two"})
    world.delete(LENDING_POOLS, "chat")
    world.put(KUEUE_CLUSTER_QUEUES, world.get(KUEUE_CLUSTER_QUEUES, "lent"))
    world.lives(2)
    assert (world.quota(), world.held()) == (0, {"one"})


def test_a_job_that_its_user_resumes_is_his_again_and_can_be_stopped_again() -> None:
    world = World()
    world.kai_queue("lent", 0)
    world.pool(borrowers=[{"system": "KAI", "queue": "lent"}])
    world.demand = {"serving/chat": 2.0}
    world.lives(2)
    world.job("one", 2, "lent")
    world.lives(1)
    world.demand["serving/chat"] = 7.0
    world.lives(1)
    assert world.get(JOBS, "one", "team")["spec"]["suspend"] is True
    job = world.get(JOBS, "one", "team")
    world.put(JOBS, job | {"spec": job["spec"] | {"suspend": False}})
    stopped = world.writes["jobs/one"]
    world.lives(4)
    assert world.get(JOBS, "one", "team")["spec"]["suspend"] is True
    assert world.writes["jobs/one"] > stopped


def test_a_clock_that_was_ahead_for_a_moment_costs_no_day_of_lending() -> None:
    world = lending()
    world.demand["serving/chat"] = 4.0
    world.now_s += 86_400.0
    world.life()
    world.now_s -= 86_400.0
    world.demand["serving/chat"] = 2.0
    world.lives(4)
    assert (world.quota(), world.status()["lentGpus"]) == (6, 6)
    assert all(one["at"] <= stamp(world.now_s) for one in world.status()["history"])
    assert len(world.status()["state"]["promised"]) > 1, "and caution goes on being learned"


def test_forecasts_from_before_a_clock_was_set_back_are_not_fresh_for_ever() -> None:
    async def ask(query: DemandQuery) -> DemandForecast:
        return world.answer(query)

    world = World()
    world.pool()
    pool = pool_of(world.get(LENDING_POOLS, "chat"))
    forecasts = Forecasts(ask, lambda: None, 300.0, lambda: world.now_s)
    asyncio.run(forecasts.refresh([(pool, 300.0)]))
    assert forecasts.state(pool) is ForecastState.FRESH
    world.now_s -= 86_400.0
    assert forecasts.state(pool) is ForecastState.STALE


@pytest.mark.parametrize("demand", [1e300, 1e18])
def test_a_forecast_beyond_all_sense_stops_nothing_and_can_be_written(demand: float) -> None:
    world = lending()
    world.demand["serving/chat"] = demand
    world.pool(
        "small",
        services=[
            {
                "name": "chat",
                "namespace": "serving",
                "capacityPerGpu": 1e-300,
                "selector": {"matchLabels": {"app": "chat"}},
            }
        ],
        borrowers=[],
    )
    world.lives(2)
    assert (world.quota(), world.runs()) == (0, set())
    for name in ("chat", "small"):
        assert world.status(name)["history"][-1]["p99"] == 1_000_000


def test_a_quota_that_the_server_writes_in_its_own_way_is_still_ours() -> None:
    """Kueue's webhook turns 1000 into 1k."""
    world = World()
    world.queue(quotas={"h100": "994"})
    world.pool()
    world.demand = {"serving/chat": 2.0}
    world.lives(2)
    assert world.quota() == 1000
    for needed, quota in ((4.0, 998), (2.0, 1000)):
        as_kueue_writes_it(world)
        world.demand["serving/chat"] = needed
        world.lives(2)
        assert world.quota() == quota
    as_kueue_writes_it(world)
    world.delete(LENDING_POOLS, "chat")
    world.lives(2)
    assert (world.quota(), world.held()) == (994, set())


def as_kueue_writes_it(world: World) -> None:
    resource = world.get(KUEUE_CLUSTER_QUEUES, "lent")["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    if resource["nominalQuota"] == "1000":
        resource["nominalQuota"] = "1k"


ROW = {"at": ["h100", GPU], "set": "6"}


@pytest.mark.parametrize("undo", ["", [], {"quota": 5}, {"quota": [ROW]}, {"quota": [ROW | {"own": "many"}]}])
def test_marks_that_somebody_has_written_over_are_taken_away_all_the_same(undo: object) -> None:
    world = lending()
    queue = world.get(KUEUE_CLUSTER_QUEUES, "lent")
    queue["metadata"]["annotations"]["kaiwo.ai/held-undo"] = json.dumps(undo)
    world.put(KUEUE_CLUSTER_QUEUES, queue)
    world.delete(LENDING_POOLS, "chat")
    world.lives(2)
    assert (world.held(), world.quota()) == (set(), 6), "what nobody knows stays"


def test_a_queue_whose_quota_may_not_be_changed_does_not_keep_the_others() -> None:
    world = World()
    world.queue("fixed")
    world.queue("lent")
    world.pool(borrowers=[{"system": "Kueue", "queue": name} for name in ("fixed", "lent")])
    world.demand = {"serving/chat": 2.0}
    for queue in ("fixed", "lent"):
        world.submit(f"of-{queue}", 3, queue)
    world.lives(3)
    assert (world.quota("fixed"), world.quota("lent")) == (3, 3)
    world.refuses = {"fixed"}
    world.demand["serving/chat"] = 5.0
    world.life(steps=3)
    assert world.quota("lent") == 0
    assert world.held() == {"fixed", "of-lent"}, "nobody is stopped whose GPUs another of its queue would take at once"
    world.demand["serving/chat"] = 8.0
    world.refuses = set()
    world.lives(2)
    assert (world.quota("fixed"), world.runs()) == (0, set())
    world.refuses = {"fixed"}
    world.demand["serving/chat"] = 2.0
    world.lives(3)
    assert world.runs() == {"of-lent"}
