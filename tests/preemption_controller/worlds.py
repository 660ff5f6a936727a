"""Pods in memory, with what goes on around the controller, which lives and dies among them."""

import asyncio
import contextlib
import itertools
import json
from typing import Any, cast

from hypothesis import strategies as st

from kopt.cluster.client.api import ApiError, Conflict
from kopt.cluster.workloads.jobs import outlives
from kopt.controllers.preemption.kube_scheduler.preemptor import PlainPreemption
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang, placed
from kopt.controllers.preemption.kube_scheduler.views import PlainNode, PlainPod, plain_node, plain_pod
from kopt.controllers.preemption.patches import stamp
from kopt.controllers.preemption.ports import ControllerSettings
from kopt.core.decision import Mode

from .builders import GPU, NOW_S, KilledError, notes

SETTINGS = ControllerSettings(Mode.ENFORCE, budget_s=120.0)
ASKABLE = {"kaiwo.ai/saves-on-request": "true"}
KINDS = {
    "safe": notes(),
    "cheap": notes(lost=1),
    "writing": notes("CKPT_WRITING", safe=False),
    "silent": {},
    "unknown": notes("UNKNOWN", safe=False),
    "no evidence": notes(safe=True, known=False),
    "stale": notes(age_s=500),
}
SAFE = ("safe", "cheap")
Object = dict[str, Any]
Made = tuple[str, list[int], int, bool]
"""A gang: its kind, the nodes of its pods, its priority, whether it can be asked to save."""
gangs = st.lists(
    st.tuples(
        st.sampled_from(sorted(KINDS)),
        st.lists(st.integers(0, 2), min_size=1, max_size=3),
        st.sampled_from([0, 10, 10, 5000]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


class World:
    """Pods on three nodes in memory, its own writer, with what kube-scheduler and the Job controller do."""

    takes = PlainPreemption
    reads = staticmethod(plain_pod)

    def __init__(self, room: int = 4) -> None:
        self.pods: dict[str, Object] = {}
        self.nodes = {f"n{number}": node(f"n{number}", room) for number in range(3)}
        self.now_s, self.writes, self.versions = NOW_S, 0, itertools.count(1)
        self.dies_after: int | None = None
        self.evicted: list[str] = []
        self.asked: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.refuses: set[str] = set()
        self.rejects: set[str] = set()
        self.jobs: dict[str, Object] = {}
        self.sets: dict[str, str] = {}

    def add(
        self,
        job: str,
        number: int,
        gpus: int,
        priority: int,
        on: str = "",
        annotations: Object | None = None,
        never: bool = False,
    ) -> None:
        name = f"{job}-{number}"
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": f"{name}-{next(self.versions)}",
                "resourceVersion": "1",
                "creationTimestamp": stamp(NOW_S - 5 if never else NOW_S - 9000),
                "annotations": dict(annotations or {}),
                "ownerReferences": [{"kind": "Job", "name": job, "uid": f"job-{job}", "controller": True}],
            },
            "spec": {
                "schedulerName": "default-scheduler",
                "priority": priority,
                "nodeName": on,
                "preemptionPolicy": "Never" if never else "PreemptLowerPriority",
                "containers": [{"resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}}}],
            },
            "status": {"phase": "Running", "startTime": stamp(NOW_S - 9000)}
            if on
            else {"phase": "Pending", "conditions": [refused]},
        }

    def snapshot(self, now_s: float) -> ClusterSnapshot:
        seen = [plain_pod(json.loads(json.dumps(one))) for one in self.pods.values()]
        return ClusterSnapshot(
            now_s, [one for one in seen if one], self.nodes, ours=frozenset({"team"}), sets=self.sets
        )

    def mode(self, _: PlainPod) -> str:
        return ""

    def tell(self, regarding: Object, reason: str, _: str) -> None:
        self.told.append((regarding["name"], reason))

    async def patch(self, pod: PlainPod, changes: Object) -> None:
        if pod.key[1] in self.rejects:
            raise ApiError(422, "Invalid", "a policy of the namespace refuses it")
        document = self._write(pod)
        if document["metadata"]["resourceVersion"] != pod.gpu_pod.version:
            raise Conflict(409, "Conflict", "it has changed")
        for name, value in changes["metadata"]["annotations"].items():
            if name == "kaiwo.ai/save-requested":
                self.asked.append(pod.key[1])
            if value is None:
                document["metadata"]["annotations"].pop(name, None)
            else:
                document["metadata"]["annotations"][name] = value
        document["metadata"]["resourceVersion"] = str(next(self.versions) + 1)

    async def promise(self, pod: PlainPod, where: str) -> None:
        self._write(pod)["status"]["nominatedNodeName"] = where

    async def read_pod(self, pod: PlainPod) -> PlainPod | None:
        found = self.pods.get(pod.key[1])
        return self.reads(json.loads(json.dumps(found))) if found else None

    async def evict(self, pod: PlainPod, *, dry_run: bool = False) -> None:
        if pod.key[1] in self.refuses:
            raise ApiError(429, "TooManyRequests", "it would violate the pod's disruption budget")
        if not dry_run:
            self._write(pod)["metadata"]["deletionTimestamp"] = stamp(self.now_s)
            self.evicted.append(pod.key[1])

    async def outlives(self, gang: Gang) -> bool:
        return outlives(self.jobs.get(gang.name, {}), len(gang.pods))

    def _write(self, pod: PlainPod) -> Object:
        if self.dies_after is not None and self.writes >= self.dies_after:
            raise KilledError
        self.writes += 1
        return self.pods[pod.key[1]]

    def goes_on(self) -> None:
        """Who was evicted is gone; who waits is bound where all of it fits."""
        for name in [name for name, one in self.pods.items() if "deletionTimestamp" in one["metadata"]]:
            del self.pods[name]
        moment = self.snapshot(self.now_s)
        for waiting in moment.preemptors():
            for key, where in (placed(waiting, moment, ()) or {}).items():
                self.pods[key[1]]["spec"]["nodeName"] = where

    def dies(self, writes: int) -> None:
        """A life of the controller that ends after so many writes."""
        self.writes, self.dies_after = 0, writes
        with contextlib.suppress(KilledError):
            self.passes(5)
        self.dies_after = None

    def passes(self, count: int = 2) -> None:
        """One life of the controller."""
        taking = self.takes(self, cast(Any, self), SETTINGS, self.tell, lambda: self.now_s)

        async def work() -> None:
            for _ in range(count):
                await taking.step()

        asyncio.run(work())


def node(name: str, gpus: int) -> PlainNode:
    found = plain_node(
        {
            "metadata": {"name": name, "labels": {}},
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {GPU: str(gpus), "cpu": "64", "pods": "110"},
            },
        }
    )
    assert found is not None
    return found


def fill(found: World, made: list[Made], pods: int, gpus: int) -> None:
    """Gangs with a pod of one GPU on each node that is named; who waits asks for so many pods."""
    left = dict.fromkeys(found.nodes, 4)
    for n, (kind, where, priority, can) in enumerate(made):
        for number, place in enumerate(where):
            if left[f"n{place}"]:
                left[f"n{place}"] -= 1
                found.add(f"gang-{n}", number, 1, priority, f"n{place}", {**KINDS[kind], **(ASKABLE if can else {})})
    found.nodes = {name: node(name, 4 - amount) for name, amount in left.items()}
    for number in range(pods):
        found.add("urgent", number, gpus, 1000, never=True)


def fresh(one: World) -> None:
    """Log agents write again."""
    for pod in one.pods.values():
        if "kaiwo.ai/checkpoint-observed-at" in (found := pod["metadata"]["annotations"]) and "stale" not in found:
            age = found["kaiwo.ai/checkpoint-observed-at"]
            if age >= stamp(NOW_S - 60):
                found["kaiwo.ai/checkpoint-observed-at"] = stamp(one.now_s)
                pod["metadata"]["resourceVersion"] = str(next(one.versions) + 1)


def live_and_die(one: World, made: list[Made], deaths: list[int], below: int) -> set[str]:
    """Forty lives, some of which end at a write; who went, of those who may: safe gangs of a priority below ``below``,
    whole and once."""
    there = {name for name in one.pods if name.startswith("gang")}
    for _ in range(40):
        one.writes, one.dies_after = 0, deaths.pop() if deaths else None
        with contextlib.suppress(KilledError):
            one.passes()
        one.now_s += 5
        one.goes_on()
        fresh(one)
    kinds = {f"gang-{n}": (kind, priority) for n, (kind, _, priority, _) in enumerate(made)}
    gone = {name.rpartition("-")[0] for name in one.evicted}
    assert all(kinds[name][0] in SAFE and kinds[name][1] < below for name in gone)
    assert len(one.evicted) == len(set(one.evicted)), "a pod was evicted twice"
    assert set(one.evicted) == {name for name in there if name.rpartition("-")[0] in gone}, "a gang went in part"
    assert len(one.asked) == len(set(one.asked)), "a pod was asked twice"
    return gone
