"""Questions that name only the kind of a job, answered by a replica that has not read the cluster's runs: from the
feature store, with the same numbers, and with a reason where the store knows less."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import wait_for

from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobRun
from kopt.features.rows import FeatureStoreError
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.runtime.service import RunTimeService
from kopt.serving.runtime.stored import RunFeatures, open_run_store
from tests.serving.conftest import MemorySource, StandInModel, no_store
from tests.serving.test_runtime import KIND, NOW_S, client, ended, question

Replica = tuple[Endpoint, RunFeatures]


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Callable[[], Replica]]:
    """Starts replicas with one state, and waits until each reads the store."""
    started = []

    def go() -> Replica:
        settings = Settings(home=tmp_path)
        features = RunFeatures(open_run_store(settings))
        parts = Parts(
            MemorySource(),
            StoredFeatures(no_store),
            run_features=features,
            refresh_s=3600,
            shipped={"demand": StandInModel},
        )
        endpoint = assemble(settings, parts)
        endpoint.start()
        endpoint.service(RunTimeService).refresh()
        started.append(endpoint)
        wait_for(lambda: features.is_open, timeout_s=90, what="the feature store of runs")
        return endpoint, features

    yield go
    for endpoint in started:
        endpoint.stop()


def codes(answer: Any) -> list[str]:
    return [reason.code for reason in answer.reasons]


async def test_a_replica_that_has_read_no_run_answers_as_one_that_has(
    replica: Callable[[], Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, features), (other, _) = replica(), replica()
    async with client(one) as first, client(other) as second:
        assert codes(await second.runtime(question())) == ["NO_RUNS"], "neither runs nor features"
        runs = ended(24)
        await first.send_runs(runs[:20])
        await first.send_runs([JobRun("now", KIND, NOW_S - 60.0)])
        wait_for(lambda: features.is_idle, what="written features")
        by_runs, by_store = [await asked.runtime(question()) for asked in (first, second)]
        assert codes(by_runs) == ["SIMILAR_RUNS"]
        assert codes(by_store) == ["SIMILAR_RUNS", "STORED_FEATURES"]
        assert by_store.run_seconds == by_runs.run_seconds
        assert (by_store.level, by_store.finished) == ("name", 20)
        other_kind = await second.runtime(question(queue="elsewhere", gpus=1, name="", user=""))
        assert (other_kind.level, codes(other_kind)[1]) == ("all", "STORED_FEATURES")

        # What is known and not stored yet is said; then it is stored.
        monkeypatch.setattr("kopt.serving.runtime.stored.GATHER_S", 3.0)
        await first.send_runs(runs[20:])
        late = await second.runtime(question())
        assert codes(late) == ["SIMILAR_RUNS", "STALE_FEATURES"]
        wait_for(lambda: features.is_idle, what="written features")
        after = await second.runtime(question())
        assert (after.finished, codes(after)[1]) == (24, "STORED_FEATURES")
        old = await second.runtime(question(at_s=NOW_S + 9e5))
        assert codes(old)[1] == "STALE_FEATURES"

        # A store that fails is not the caller's problem: the runs themselves are read.
        def fails(*_: Any) -> Any:
            raise FeatureStoreError("broken on purpose")

        monkeypatch.setattr("kopt.features.run_store.RunFeatureStore.online", fails)
        read = await second.runtime(question())
        assert (read.finished, codes(read)) == (24, ["SIMILAR_RUNS"])
        assert read.run_seconds == (await first.runtime(question())).run_seconds
