"""Whatever order events come in, however often, and whoever writes: each eviction is one line, and the same line."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.errors import AlreadyExists, Conflict, Unreachable
from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.workloads.tracked_pod import read_pod
from kopt.controllers.evictions.detection import GATHER_S
from kopt.controllers.evictions.observations import Observed
from kopt.controllers.evictions.recorder import Recorder
from kopt.controllers.evictions.store import EvictionStore
from kopt.controllers.evictions.views import read_job, read_workload
from kopt.policies.evictions import Keeping

VIEWS: dict[str, Callable[[Object], Any]] = {"Pod": read_pod, "Job": read_job, "Workload": read_workload}
Event = tuple[str, Object, bool]
"""(kind, object, whether it is there)."""
NOW = 1_772_000_000.0


def at(minute: float) -> str:
    from kopt.core.times import stamp

    return stamp(NOW + 60 * minute)


class Server:
    """An API server's part in it: names are unique, versions count, ``dies`` cuts the answer of every nth write."""

    def __init__(self, dies: Sequence[int] = ()) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.writes, self.created, self._dies, self._version = 0, 0, set(dies), 0
        self.errors = 0

    async def create(self, resource: Resource, body: Object) -> Object:
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", str(key))
        self.created += 1
        return self._keep(key, body | {"metadata": body["metadata"] | {"uid": f"uid-{key[1]}"}})

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if self.objects[key]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "changed")
        assert subresource == "status"
        return self._keep(key, self.objects[key] | {"status": body["status"]})

    async def delete(self, resource: Resource, seen: Object) -> None:
        raise AssertionError("nothing is old")

    def _keep(self, key: tuple[str, str], body: Object) -> Object:
        self._version += 1
        self.objects[key] = body | {"metadata": body["metadata"] | {"resourceVersion": str(self._version)}}
        self.writes += 1
        if self.writes in self._dies:
            raise Unreachable("cut off")
        return copy.deepcopy(self.objects[key])


class Replica:
    """One process; ``time`` is everybody's clock."""

    def __init__(self, server: Server, time: list[float]) -> None:
        self.observed, self.store, self._server = Observed(lambda: time[0]), EvictionStore(cast(Any, None)), server
        self.recorder = Recorder(
            self.observed, self.store, server, lambda *_: None, Keeping(), lambda: time[0], lambda: time[0]
        )

    def tell(self, event: Event) -> None:
        kind, document, there = event
        view = VIEWS[kind](copy.deepcopy(document))
        take: Any = {"Pod": self.observed.pod, "Job": self.observed.job, "Workload": self.observed.workload}[kind]
        take(None, view) if there else take(view, None)

    async def step(self) -> None:
        for document in self._server.objects.values():
            self.store.record(copy.deepcopy(document))
        await self.recorder.step()


def pod(
    name: str,
    owner: str,
    started: float | None,
    *,
    disrupted: float | None = None,
    deleted: float | None = None,
    step: int | None = None,
    kind: str = "Job",
) -> Event:
    conditions = (
        []
        if disrupted is None
        else [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "drained",
                "lastTransitionTime": at(disrupted),
            }
        ]
    )
    notes = (
        {}
        if step is None
        else {"kaiwo.ai/checkpoint-observed-at": at(started or 0), "kaiwo.ai/last-checkpoint-step": str(step)}
    )
    owners = [{"apiVersion": "batch/v1", "kind": kind, "name": owner, "uid": f"job-{owner}", "controller": True}]
    status: Object = {"phase": "Pending", "conditions": conditions}
    if started is not None:
        status |= {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": at(started)}}}]}
    metadata: Object = {
        "name": name,
        "namespace": "team",
        "uid": f"pod-{name}",
        "ownerReferences": owners,
        "annotations": notes,
    }
    if deleted is not None:
        metadata |= {"deletionTimestamp": at(deleted + 0.5), "deletionGracePeriodSeconds": 30}
    return "Pod", {"metadata": metadata, "spec": TEMPLATE, "status": status}, True


TEMPLATE: Object = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}


def gone(event: Event) -> Event:
    return event[0], event[1], False


def job(
    name: str, pods: int, *, suspended: float | None = None, resumed: float | None = None, queued: bool = False
) -> Event:
    conditions = []
    if suspended is not None:
        since = {"status": "True", "lastTransitionTime": at(suspended)}
        conditions = [
            {"type": "Suspended", **since}
            if resumed is None
            else {"type": "Suspended", "status": "False", "lastTransitionTime": at(resumed)}
        ]
    labels = {"kueue.x-k8s.io/queue-name": "gpus"} if queued else {}
    return (
        "Job",
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": f"job-{name}",
                "labels": labels,
                "creationTimestamp": at(-100),
            },
            "spec": {
                "suspend": suspended is not None and resumed is None,
                "parallelism": pods,
                "completions": pods,
                "template": {"spec": TEMPLATE},
            },
            "status": {"conditions": conditions},
        },
        True,
    )


def workload(
    name: str, pods: int, *, admitted: float, evicted: float | None = None, message: str = "", kind: str = "Job"
) -> Event:
    """Kueue's, of the Job of that name."""
    owners = [{"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": f"job-{name}", "controller": True}]
    conditions = [{"type": "Admitted", "status": "True", "lastTransitionTime": at(admitted)}]
    if evicted is not None:
        conditions.append(
            {
                "type": "Evicted",
                "status": "True",
                "reason": "Preempted",
                "message": message,
                "lastTransitionTime": at(evicted),
            }
        )
        if evicted < admitted:
            conditions[-1] |= {"status": "False", "lastTransitionTime": at(admitted)}
    return (
        "Workload",
        {
            "metadata": {
                "name": f"job-{name}",
                "namespace": "team",
                "uid": f"workload-{name}",
                "ownerReferences": owners,
            },
            "spec": {"podSets": [{"count": pods, "template": {"spec": TEMPLATE}}]},
            "status": {"conditions": conditions},
        },
        True,
    )


def story() -> list[list[Event]]:
    """What each object goes through, in its own order: a Kueue pre-emption, a suspension, a drained gang,
    and a Workload whose operator ends its pods with a condition."""
    low = [pod(f"low-{n}", "low", 0, step=100) for n in range(2)]
    plain = pod("plain-0", "plain", 0, step=50)
    gang = [pod(f"gang-{n}", "gang", 0) for n in range(3)]
    taken = [pod(f"gang-{n}", "gang", 0, disrupted=20 + n / 60, deleted=20 + n / 60) for n in range(3)]
    return [
        [
            workload("low", 2, admitted=0),
            workload("low", 2, admitted=0, evicted=5, message="make room"),
            workload("low", 2, admitted=8, evicted=5),
        ],
        [
            job("low", 2, queued=True),
            job("low", 2, suspended=5.1, queued=True),
            job("low", 2, suspended=5.1, resumed=8, queued=True),
        ],
        *[[one, pod(f"low-{n}", "low", 0, deleted=5.1, step=100), gone(one)] for n, one in enumerate(low)],
        *[[pod(f"low-again-{n}", "low", None), pod(f"low-again-{n}", "low", 9)] for n in range(2)],
        [job("plain", 1), job("plain", 1, suspended=10), job("plain", 1, suspended=10, resumed=12)],
        [plain, pod("plain-0", "plain", 0, deleted=10, step=50), gone(plain)],
        [pod("plain-1", "plain", 13)],
        [job("gang", 3)],
        *[[one, then, gone(then)] for one, then in zip(gang, taken, strict=True)],
        *[[pod(f"gang-again-{n}", "gang", 22)] for n in range(3)],
        [
            workload("torch", 2, admitted=0, kind="PyTorchJob"),
            workload("torch", 2, admitted=0, evicted=30, message="make room", kind="PyTorchJob"),
        ],
        *[
            [
                pod(f"torch-{n}", "torch", 0, kind="PyTorchJob"),
                pod(f"torch-{n}", "torch", 0, disrupted=30.1, deleted=30.1, kind="PyTorchJob"),
            ]
            for n in range(2)
        ],
    ]


@st.composite
def orders(draw: st.DrawFn, tracks: int) -> list[tuple[int, int]]:
    """(track, how many of its events are said again) in any interleaving."""
    left = {n: len(track) for n, track in enumerate(story())}
    assert len(left) == tracks
    found = []
    while left:
        track = draw(st.sampled_from(sorted(left)))
        found.append((track, draw(st.integers(0, 2))))
        left[track] -= 1
        if not left[track]:
            del left[track]
    return found


def told(
    order: Sequence[tuple[int, int]], *, dies: Sequence[int] = (), restarts: Sequence[int] = (), two: bool = False
) -> Server:
    """The ledger when the story is told in this order; a process is replaced before the events in ``restarts``."""
    tracks, place = story(), [0] * len(story())
    server, time = Server(dies), [NOW + 1500]
    replicas = [Replica(server, time) for _ in range(2 if two else 1)]

    async def run() -> None:
        for number, (track, again) in enumerate(order):
            event = tracks[track][place[track]]
            place[track] += 1
            if number in restarts:
                replicas[0] = Replica(server, time)
                for one, reached in zip(tracks, place, strict=True):
                    if reached and one[reached - 1][2]:
                        replicas[0].tell(one[reached - 1])
            for replica in replicas:
                for _ in range(1 + again):
                    replica.tell(event)
            if two or dies or restarts:
                # Not all is told before somebody writes.
                for replica in replicas:
                    await replica.step()
        for _ in range(30):
            time[0] += GATHER_S + 0.2
            for replica in replicas:
                await replica.step()

    asyncio.run(run())
    server.errors = sum(one.recorder.errors for one in replicas)
    return server


def essence(server: Server) -> dict[str, Any]:
    return {name: (one["spec"], one["status"]) for (_, name), one in sorted(server.objects.items())}


TRACKS = len(story())
IN_ORDER = [(n, 0) for n, track in enumerate(story()) for _ in track]


def test_the_story_is_four_lines() -> None:
    found = [
        (
            one["spec"]["workload"]["name"],
            one["spec"]["cause"],
            one["spec"]["gpus"],
            one["status"]["phase"],
            one["spec"].get("lastDurableStep"),
        )
        for one in sorted(told(IN_ORDER).objects.values(), key=lambda one: one["spec"]["order"])
    ]
    assert found == [
        ("low", "Preempted", 4000, "Resumed", 100),
        ("plain", "Suspended", 2000, "Resumed", 50),
        ("gang", "Drained", 6000, "Resumed", None),
        ("torch", "Preempted", 4000, "Waiting", None),
    ]


@settings(max_examples=examples(25))
@given(orders(TRACKS))
def test_any_order_and_any_repeats_give_the_same_ledger(order: list[tuple[int, int]]) -> None:
    server = told(order)
    assert essence(server) == essence(told(IN_ORDER))
    assert server.errors == 0, "nothing is tried that is written already"


@settings(max_examples=examples(25))
@given(orders(TRACKS), st.lists(st.integers(1, 12), max_size=4))
def test_writes_that_are_cut_off_are_not_made_twice(order: list[tuple[int, int]], dies: list[int]) -> None:
    server = told(order, dies=dies)
    assert one_each(server), essence(server)


@settings(max_examples=examples(25))
@given(orders(TRACKS), st.lists(st.integers(0, 30), max_size=3))
def test_two_that_write_and_restarts_make_one_line_each(order: list[tuple[int, int]], restarts: list[int]) -> None:
    server = told(order, restarts=restarts, two=True)
    assert one_each(server), essence(server)


def one_each(server: Server) -> bool:
    names = sorted(one["spec"]["workload"]["name"] for one in server.objects.values())
    return names == ["gang", "low", "plain", "torch"] and server.created == len(server.objects)
