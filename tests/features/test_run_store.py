"""Features of runs in the store: what is joined at a moment is what was known then, and online rows are the newest."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.features.job_history import GroupState, JobHistory, Key, described, in_order, keys_of
from kopt.features.rows import FeatureStoreError
from kopt.features.run_rows import MOST_BEHIND, TTL_S, Calibration, Cluster, RunRows
from kopt.features.run_store import RunFeatureStore

T0_S = 1.79e9
CLUSTER = Cluster("ada", "here")
KIND = JobKind("research", 8, "finetune", "ada")


@pytest.fixture
def run_store(settings: Settings) -> RunFeatureStore:
    return RunFeatureStore(settings)


def some_runs(count: int = 40) -> list[JobRun]:
    """Of four kinds, some of which go on."""
    rng = random.Random(3)
    kinds = [KIND, JobKind("research", 8), JobKind("research", 1), JobKind("production", 8, "finetune", "ada")]
    starts_s = sorted(T0_S + rng.uniform(0, 5_000) for _ in range(count))
    return [
        JobRun(
            f"job-{at}",
            rng.choice(kinds),
            started_s,
            None if at % 7 == 6 else started_s + rng.uniform(10, 3_000),
            interrupted=at % 11 == 5,
        )
        for at, started_s in enumerate(starts_s)
    ]


def known_at(runs: list[JobRun], kind: JobKind, at_s: float) -> dict[Key, GroupState]:
    """By the history that training feeds."""
    history = JobHistory()
    for time_s, has_ended, run in in_order(runs):
        if time_s > at_s:
            break
        (history.end if has_ended else history.start)(run)
    return history.states(keys_of(kind))


def assert_same(left: dict[Key, GroupState], right: dict[Key, GroupState]) -> None:
    assert left.keys() == right.keys()
    for key, state in left.items():
        for name in ("finished", "running", "starts_s", "neighbours", "recent"):
            np.testing.assert_array_equal(np.array(getattr(state, name)), np.array(getattr(right[key], name)), str(key))


def test_a_join_knows_what_was_known_and_online_rows_the_newest(run_store: RunFeatureStore) -> None:
    runs = some_runs()
    run_store.write(CLUSTER, runs, 7)
    questions = [(run.kind, run.started_s - 1e-3) for run in runs[5:]] + [(KIND, T0_S + 1e6), (KIND, T0_S - 1.0)]
    joined = run_store.as_of(CLUSTER, questions)
    for (kind, at_s), states in zip(questions, joined, strict=True):
        assert_same(states, known_at(runs, kind, at_s))
    assert joined[-1] == {}
    # Nothing of a run's end is known while it goes on, whatever it will be.
    at_s = float(np.median([run.started_s for run in runs]))
    later = [replace(run, ended_s=at_s + 9e5) if run.ended_s is None or run.ended_s > at_s else run for run in runs]
    other = Cluster("ada", "there")
    run_store.write(other, [replace(run, interrupted=False) if run.ended_s == at_s + 9e5 else run for run in later])
    assert_same(run_store.as_of(other, [(KIND, at_s)])[0], run_store.as_of(CLUSTER, [(KIND, at_s)])[0])

    assert run_store.online(CLUSTER, KIND).problem(7, T0_S).code == "NO_FEATURES"  # type: ignore[union-attr]
    run_store.materialise(CLUSTER)
    online = run_store.online(CLUSTER, KIND)
    assert_same(dict(online.groups), known_at(runs, KIND, math.inf))
    history = JobHistory()
    for _, has_ended, run in in_order(runs):
        (history.end if has_ended else history.start)(run)
    of_job = [online.groups[key] for key in (("name", "research", 8, "finetune", "ada"), *list(online.groups)[2:])]
    row = described(KIND, T0_S + 6_000, "name", of_job)
    np.testing.assert_array_equal(row.features, history.describe(KIND, T0_S + 6_000).features)

    assert online.problem(7, online.known_s + 60) is None
    behind = online.problem(8, online.known_s)
    old = online.problem(7, online.known_s + TTL_S + 1)
    assert behind is not None
    assert behind.code == "STALE_FEATURES"
    assert behind.numbers == {"behind": 1}
    assert old is not None
    assert old.code == "STALE_FEATURES"
    assert "runs controller" in old.message
    assert online.is_usable(7 + MOST_BEHIND)
    assert not online.is_usable(8 + MOST_BEHIND)


def test_what_is_put_is_online_at_once_and_in_the_history(run_store: RunFeatureStore) -> None:
    state = known_at(some_runs(), KIND, math.inf)["all",]
    held = Calibration((0.5,) * 7, 200, 1.7, True)
    rows = RunRows(CLUSTER, T0_S, 3, {("all",): state}, {("v1", ("queue", "research")): held})
    assert run_store.put([rows]) == 2
    online = run_store.online(CLUSTER, KIND, "v1")
    assert_same(dict(online.groups), {("all",): state})
    assert online.calibrations == {("v1", ("queue", "research")): held} or math.isnan(held.recent_share)
    assert run_store.online(CLUSTER, KIND, "v2").calibrations == {}
    assert run_store.online(Cluster("eve", "here"), KIND, "v1").groups == {}
    assert run_store.change(CLUSTER) == 3
    assert_same(run_store.as_of(CLUSTER, [(KIND, T0_S)])[0], {("all",): state})
    assert run_store.as_of(CLUSTER, [(KIND, T0_S - 1)]) == [{}]
    with pytest.raises(FeatureStoreError, match="Unix seconds"):
        run_store.put([replace(rows, known_s=-5.0)])


@pytest.mark.services
def test_redis_gives_the_rows_that_sqlite_gives(settings: Settings, redis_server: Any) -> None:
    server = redis_server()
    local = RunFeatureStore(settings)
    remote = RunFeatureStore(replace(settings, redis_url=f"redis://127.0.0.1:{server.port}/2"))
    runs = some_runs()
    local.write(CLUSTER, runs, 7)
    assert local.materialise(CLUSTER) == remote.materialise(CLUSTER)
    here, there = local.online(CLUSTER, KIND), remote.online(CLUSTER, KIND)
    assert (here.known_s, here.change) == (there.known_s, there.change)
    assert_same(dict(here.groups), dict(there.groups))
    server.stop()
    with pytest.raises(FeatureStoreError, match="KOPT_REDIS_URL"):
        remote.online(CLUSTER, KIND)
