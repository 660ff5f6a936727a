"""Wherever the controller dies, each pair is measured once, each test is charged once, and no node is in two tests.

The cluster round the controller is played here, so that thousands of lives can be gone through.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.api import AlreadyExists, NotFound
from kopt.cluster.client.resources import (
    JOBS,
    NODE_BANDWIDTHS,
    PAIRWISE_BENCHMARKS,
    SERVICES,
    Key,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.objects.custom.node_bandwidth import bandwidth_of
from kopt.controllers.pairwise.jobs import pair_of_job
from kopt.controllers.pairwise.ports import Writer
from kopt.controllers.pairwise.reconciler import Reconciler
from kopt.controllers.pairwise.views import ObservedNode, ObservedPod
from kopt.core.hardware.pairwise import Health
from kopt.core.times import stamp

from .conftest import GPU, GPUS
from .rendered import log

Deaths = Mapping[int, str]
START_S = 1_800_000_000.0
SICK = "node-1"


class Dies(BaseException):
    """The controller's end."""


class Played:
    """A cluster in which a test takes ``length`` looks. ``taken`` names tests, by number, that somebody else ends."""

    def __init__(
        self,
        nodes: int,
        deaths: Deaths = {},  # noqa: B006
        *,
        length: int = 2,
        at_once: int = 2,
        taken: frozenset[int] = frozenset(),
        gpu_seconds: int = 0,
    ) -> None:
        self.deaths, self.length, self.taken = deaths, length, taken
        self.now_s, self.calls = START_S, 0
        self.node_views = {
            name: ObservedNode(name, name, {}, (), {GPU: GPUS}, True, 0.0)
            for name in (f"node-{n}" for n in range(nodes))
        }
        self.stored: dict[Resource, dict[Key, Object]] = {JOBS: {}, NODE_BANDWIDTHS: {}, PAIRWISE_BENCHMARKS: {}}
        spec = {
            "gpuResource": GPU,
            "gpusPerNode": GPUS,
            "maxPairsAtOnce": at_once,
            "gpuSecondsPerDay": gpu_seconds,
            "timeout": "60s",
            "template": {"spec": {"containers": [{"image": "x", "command": ["x"]}]}},
        }
        self._put(PAIRWISE_BENCHMARKS, {"metadata": {"name": "b", "uid": "b"}, "spec": spec})
        self.started: list[tuple[str, ...]] = []
        self.pod_views: dict[Key, list[ObservedPod]] = {}
        self.ages: dict[Key, int] = {}
        self.numbers: dict[Key, int] = {}
        self.cost_s = 0.0

    # What the controller reads.

    def benchmarks(self) -> list[Object]:
        return list(self.stored[PAIRWISE_BENCHMARKS].values())

    def jobs(self) -> list[Object]:
        return list(self.stored[JOBS].values())

    def pods(self) -> list[ObservedPod]:
        return [one for found in self.pod_views.values() for one in found]

    def pods_of(self, job: Key) -> list[ObservedPod]:
        return self.pod_views.get(job, [])

    def nodes(self) -> Mapping[str, ObservedNode]:
        return self.node_views

    def bandwidths(self) -> dict[str, Object]:
        return {key[1]: one for key, one in self.stored[NODE_BANDWIDTHS].items()}

    def priority(self, name: str) -> int:
        return 0

    def changed_verdicts(self) -> bool:
        return True

    async def log(self, pod: Key) -> str:
        with self._call():
            pair = self.stored[JOBS][(pod[0], pod[1])]["metadata"]["annotations"]["kaiwo.ai/pair"].split(",")
            return log(tuple(pair), GPUS, beta_gbps=92 * (0.4 if SICK in pair else 1.0))

    def noted(self, resource: Resource, document: Object) -> None: ...

    def removed(self, resource: Resource, document: Object) -> None: ...

    # What it writes.

    async def create(self, resource: Resource, body: Object) -> Object:
        with self._call():
            if resource == SERVICES:
                return body
            metadata = {"uid": f"{body['metadata']['name']}-{self.calls}", "creationTimestamp": stamp(self.now_s)}
            document = {**body, "metadata": {**body["metadata"], **metadata}}
            key = key_of(document)
            if key in self.stored[resource]:
                raise AlreadyExists(409, "AlreadyExists", "")
            self._put(resource, document)
            if resource == JOBS:
                self._run(key, document)
            return document

    async def patch(self, resource: Resource, seen: Object, changes: Object) -> Object:
        with self._call():
            document = {**self._same(resource, seen), **changes}
            self._put(resource, document)
            return document

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        with self._call():
            document = {**self._same(resource, body), "status": body["status"]}
            self._put(resource, document)
            return document

    async def delete(self, resource: Resource, seen: Object, **_: Any) -> None:
        with self._call():
            self._same(resource, seen)
            key = key_of(seen)
            if resource == JOBS:
                # What it has cost is counted here as it truly was.
                self.cost_s += 2 * GPUS * round(self._ended_s(key) - self.ages[key])
                self.pod_views.pop(key, None)
            del self.stored[resource][key]

    # The rest of the cluster.

    def play(self) -> None:
        """Ten seconds go by."""
        self.now_s += 10
        for key, job in self.stored[JOBS].items():
            if "status" in job or self.now_s - self.ages[key] < 10 * self.length:
                continue
            ended = self.numbers[key] not in self.taken
            pod = self._pod(key, ended)
            self.pod_views[key] = [pod]
            condition = {
                "type": "Complete" if ended else "Failed",
                "status": "True",
                "reason": "BackoffLimitExceeded",
                "lastTransitionTime": stamp(self.now_s),
            }
            if not ended:
                self.pod_views[key] = []
            job["status"] = {"startTime": stamp(self.ages[key]), "conditions": [condition]}

    def check(self) -> None:
        running = [pair_of_job(job) for job in self.jobs()]
        names = [name for pair in running if pair for name in pair]
        assert len(names) == len(set(names)), "a node is in two tests"

    def _run(self, key: Key, job: Object) -> None:
        self.numbers[key] = len(self.started)
        self.started.append(tuple(job["metadata"]["annotations"]["kaiwo.ai/pair"].split(",")))
        self.ages[key] = int(self.now_s)
        self.check()

    def _ended_s(self, key: Key) -> float:
        conditions = self.stored[JOBS][key].get("status", {}).get("conditions")
        return self.now_s if not conditions else self.ages[key] + 10.0 * self.length

    def _pod(self, key: Key, ended: bool) -> ObservedPod:
        return ObservedPod(key, key[1], "", ended, False, False, 0, {GPU: GPUS}, key, "0", ended, 0, self.now_s)

    def _same(self, resource: Resource, seen: Object) -> Object:
        found = self.stored[resource].get(key_of(seen))
        if found is None or found["metadata"]["uid"] != seen["metadata"]["uid"]:
            raise NotFound(404, "NotFound", "")
        return found

    def _put(self, resource: Resource, document: Object) -> None:
        self.stored[resource][key_of(document)] = document

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        self.calls += 1
        fate = self.deaths.get(self.calls, "")
        if fate == "before":
            raise Dies
        yield
        if fate == "after":
            raise Dies


def live_through(cluster: Played, looks: int = 400) -> int:
    """Lives of the controller until nothing is left to do; how many."""
    lives, benchmark = 1, cluster.benchmarks()[0]
    reconciler = controller(cluster)
    for _ in range(looks):
        try:
            asyncio.run(reconciler.step())
        except Dies:
            lives += 1
            reconciler = controller(cluster)
            continue
        cluster.check()
        benchmark = cluster.benchmarks()[0]
        if benchmark["status"]["due"] == 0 and not cluster.jobs():
            break
        cluster.play()
    cluster.deaths = {}
    asyncio.run(controller(cluster).step())
    return lives


def controller(cluster: Played) -> Reconciler:
    writer = Writer(cluster, cluster)  # type: ignore[arg-type]
    return Reconciler(cluster, writer, "tests", clock=lambda: cluster.now_s, evicted_pause_s=1.0)


def finished_well(cluster: Played, again: int = 0) -> None:
    nodes = sorted(cluster.node_views)
    measured = [pair for document in cluster.bandwidths().values() for pair in bandwidth_of(document).pairs]
    pairs = {(pair.nodes, pair.collective, pair.gpus_per_node): pair for pair in measured}
    assert {one.nodes for one in pairs.values()} == set(itertools.combinations(nodes, 2))
    assert all(one.health is not Health.FAILED for one in pairs.values())
    assert len(cluster.started) == len(pairs) + again
    status = cluster.benchmarks()[0]["status"]
    assert (status["due"], status["running"], status["failedPairs"]) == (0, 0, 0)
    assert status["budget"]["gpuSeconds"] == cluster.cost_s
    sick = {name for name, one in cluster.bandwidths().items() if one["status"]["health"] == "Slow"}
    assert sick == ({SICK} if len(nodes) > 3 else set())


def test_without_a_death() -> None:
    cluster = Played(6, at_once=3)
    assert live_through(cluster) == 1
    finished_well(cluster)


def test_one_death_anywhere() -> None:
    calls = Played(4)
    live_through(calls)
    for call, when in itertools.product(range(1, calls.calls + 1), ("before", "after")):
        cluster = Played(4, {call: when})
        live_through(cluster)
        finished_well(cluster)


@settings(max_examples=examples(25))
@given(
    st.integers(2, 6),
    st.dictionaries(st.integers(1, 200), st.sampled_from(["before", "after"]), max_size=40),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_many_deaths(nodes: int, deaths: dict[int, str], length: int, at_once: int) -> None:
    cluster = Played(nodes, deaths, length=length, at_once=at_once)
    live_through(cluster)
    finished_well(cluster)


@settings(max_examples=examples(20))
@given(
    st.sets(st.integers(0, 8), max_size=5),
    st.dictionaries(st.integers(1, 120), st.sampled_from(["before", "after"]), max_size=10),
)
def test_tests_that_others_end_are_done_again(taken: set[int], deaths: dict[int, str]) -> None:
    cluster = Played(4, deaths, taken=frozenset(taken))
    live_through(cluster)
    finished_well(cluster, again=len([one for one in taken if one < len(cluster.started)]))


def test_a_day_has_no_more_than_its_budget() -> None:
    # A test may take 60 s with 8 GPUs: 480 GPU-seconds; it takes 20 s, 160.
    cluster = Played(5, gpu_seconds=1000, at_once=4)
    live_through(cluster, looks=60)
    assert cluster.cost_s <= 1000
    assert len(cluster.started) == 4
    assert cluster.benchmarks()[0]["status"]["conditions"][0]["reason"] == "BudgetSpent"
    cluster.now_s += 86_400
    live_through(cluster, looks=60)
    assert len(cluster.started) == 8
