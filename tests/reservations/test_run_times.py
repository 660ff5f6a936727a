"""Run times of the endpoint reach the policy: of what runs the rest, less what has passed since; else nothing."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import now, workload
from switches.scenarios import RESERVATIONS

from kopt.cluster.client.resources import KUEUE_WORKLOADS, Resource
from kopt.controllers.reservations.observed import Observed
from kopt.controllers.reservations.reading import read_cluster
from kopt.controllers.reservations.run_times import RunTimes, RunTimesUnknown
from kopt.controllers.reservations.snapshot import pools_of, read_reservations
from kopt.core.times import stamp
from kopt.core.workload.run_time import LEVELS, RunTimeQuantiles, RunTimeQuestion
from kopt.policies.reservations import PoolSnapshot

RUN = RunTimeQuantiles(LEVELS, (60.0, 120.0, 300.0, 600.0, 900.0, 1200.0, 1800.0))


class Endpoint:
    """Says the same of every job, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked, self.is_down = list[Mapping[str, RunTimeQuestion]](), False

    async def __call__(self, questions: Mapping[str, RunTimeQuestion]) -> Mapping[str, RunTimeQuantiles]:
        self.asked.append(questions)
        if self.is_down:
            raise RunTimesUnknown("it is down")
        return dict.fromkeys(questions, RUN)


class Served(MemoryKube):
    """Every kind in the version that is known here."""

    async def served(self, default: Resource) -> Resource:
        return default


def pool_of(observed: Observed) -> PoolSnapshot:
    (pool,) = pools_of(observed, read_reservations(observed).accepted, float("inf"))
    return pool.snapshot


async def _observed() -> Observed:
    kube = Served()
    RESERVATIONS.fill(kube)
    kube.put(KUEUE_WORKLOADS, workload("pending"))
    (reservation,) = [each for path, each in kube.objects.items() if "kaiworeservations" in path[0]]
    reservation["spec"] |= {"start": stamp(now() + 7200), "until": stamp(now() + 9000)}
    return await read_cluster(cast(Any, kube), now())


def test_the_95th_percent_counts_and_is_asked_for_once() -> None:
    endpoint, clock = Endpoint(), [0.0]
    times = RunTimes(endpoint, lambda: clock[0])
    observed = asyncio.run(_observed())
    snapshot = pool_of(asyncio.run(times.added(observed)))
    assert (snapshot.running[0].remaining_s, snapshot.pending[0].run_s) == (1800.0, 1800.0)
    assert {question.started_s is None for question in endpoint.asked[0].values()} == {True, False}
    clock[0] = 20.0
    snapshot = pool_of(asyncio.run(times.added(observed)))
    assert (snapshot.running[0].remaining_s, snapshot.pending[0].run_s) == (1780.0, 1800.0)
    assert len(endpoint.asked) == 1


def test_what_no_endpoint_knows_may_run_for_ever() -> None:
    endpoint = Endpoint()
    endpoint.is_down = True
    observed = asyncio.run(_observed())
    for times in (RunTimes(endpoint, lambda: 0.0), RunTimes(None)):
        snapshot = pool_of(asyncio.run(times.added(observed)))
        assert (snapshot.running[0].remaining_s, snapshot.pending[0].run_s) == (None, None)
