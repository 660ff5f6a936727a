"""The example's pool that grows too small: its demand is that of its jobs, and the advised purchase can be replayed."""

import pytest

from kopt.cli.local.example import agents
from kopt.cli.local.example.cluster import objects_at
from kopt.cli.local.example.gpu_hours import ExampleGpuHours
from kopt.cli.local.example.history import GPUS, RUN_DAYS, WEEKS, demand_at, runs_of_pool
from kopt.cluster.client.resources import KUEUE_FLAVORS, NODES
from kopt.cluster.workloads.kueue.pool_sizes import node_pools, pool_sizes
from kopt.core.hardware.pools import PoolSize
from kopt.policies.capacity.advice import advise, needs_of
from kopt.policies.efficiency.groups import pool_hours
from kopt.simulator.what_if.purchase import PurchaseQuestion, purchase_what_if

NOW_S = 1_900_000_123.0
SINCE_S = WEEKS * 7 * 86_400.0


def test_what_was_used_is_what_its_jobs_used() -> None:
    history, runs = demand_at(NOW_S, 14 * 86_400.0), runs_of_pool(NOW_S)
    assert len(history.of_pool("own")) == 14 * 24
    assert NOW_S - 3600 < history.end_s <= NOW_S
    (used,) = history.used.values()
    # Of the first of these days, when every job had ended that is known to have.
    begin_s, end_s = history.start_s, history.start_s + 6 * 86_400.0
    hours = sum(
        run.kind.gpus * max(0.0, min(run.ended_s or 0.0, end_s) - max(run.started_s, begin_s)) / 3600 for run in runs
    )
    assert sum(milli or 0 for milli in used[: 6 * 24]) / 1000 == pytest.approx(hours, rel=0.001)


def test_a_purchase_is_advised_and_its_replay_can_be_trusted() -> None:
    advice = advise(needs_of(demand_at(NOW_S, SINCE_S).of_pool("own")), PoolSize(GPUS, 8))
    assert advice.buy_gpus > 0
    runs = runs_of_pool(NOW_S)
    assert all(run.submitted_s is not None and run.submitted_s >= NOW_S - (RUN_DAYS + 1) * 86_400 for run in runs)
    assert all(run.ended_s is not None and run.ended_s <= NOW_S for run in runs)
    answer = purchase_what_if(runs, PurchaseQuestion("own", GPUS, advice.buy_gpus))
    assert answer.check.is_trusted
    assert answer.figure("mean wait").change < 0


def test_its_size_is_that_of_the_nodes_that_its_flavor_takes() -> None:
    objects = objects_at(NOW_S)
    sizes = pool_sizes(objects[KUEUE_FLAVORS], objects[NODES], [])
    assert sizes["own"] == PoolSize(GPUS, 8, "NVIDIA-H100-80GB-HBM3")
    pools = node_pools(objects[KUEUE_FLAVORS], objects[NODES], [])
    assert sorted(pools.values()) == ["lent"] + ["own"] * 5


def test_beside_all_other_runs_of_the_example_it_can_be_trusted_as_well() -> None:
    answer = purchase_what_if(agents.runs_at(NOW_S), PurchaseQuestion("own", GPUS, 48))
    assert answer.check.reason.code == "WHAT_IF_REPLAY_HOLDS"


def test_by_pool_nothing_is_requested_twice() -> None:
    hours = ExampleGpuHours(lambda: NOW_S).history(86_400.0)
    pools = pool_hours(hours, dict.fromkeys(hours.by_node, "own"))
    assert pools["own"].requested == pytest.approx(pools["own"].allocated)
    assert pools["own"].allocated > 0
