"""What was promised or sent and is not seen on the pod: it expires, or is looked up, and the books follow."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from kopt.cluster.client.api import ApiError, NotFound, Unreachable
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.controllers.extender.binding.request import Binder
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.protocol import BindCall, parse_offer
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.core.decision import Mode
from kopt.policies.placement.fleet import Fleet, Stage
from tests.extender.conftest import Object, gpu_pod
from tests.extender.test_books import free, node


class Sends(Binder):
    """Answers as it is told; `error` is what the API server says."""

    def __init__(self) -> None:
        self.error: ApiError | None = None
        self.sent: list[str] = []
        self.answer = asyncio.Event()
        self.answer.set()

    async def bind(self, pod: Any, uid: str, node: str, gpus: Any) -> None:
        self.sent.append(uid)
        await self.answer.wait()
        if self.error is not None:
            raise self.error


@dataclass
class Scene:
    """An extender over one node with two GPUs, and a clock that stands still unless it is moved."""

    now_s: float = 0.0
    binder: Sends = field(default_factory=Sends)

    def __post_init__(self) -> None:
        settings = ExtenderSettings(Mode.ENFORCE, reserve_s=60, assume_s=30)
        self.extender = Extender(Fleet(), self.binder, settings, ExtenderMetrics(), clock=lambda: self.now_s)
        self.extender.node_changed(Change(ChangeKind.ADDED, ("", "a"), None, node("a", 2)))

    def pod(self, name: str, bound_to: str = "") -> Object:
        document = gpu_pod(name, "ns")
        document["metadata"]["uid"] = name
        if bound_to:
            document["spec"]["nodeName"] = bound_to
        return document

    def offer(self, name: str) -> list[str]:
        body = orjson.dumps({"Pod": self.pod(name), "Nodes": None, "NodeNames": ["a"]})
        return list(orjson.loads(self.extender.filter(parse_offer(body)))["NodeNames"])

    async def bind(self, name: str) -> str:
        answer = await self.extender.bind(BindCall(("ns", name), name, "a"))
        return str(orjson.loads(answer.body)["Error"])

    def seen(self, name: str, bound_to: str = "") -> None:
        view = self.extender.pod_state(self.pod(name, bound_to))
        old = self.extender.pods.get(name)
        self.extender.pod_changed(Change(ChangeKind.UPDATED if old else ChangeKind.ADDED, view.key, old, view))

    @property
    def free(self) -> int:
        return sum(free(self.extender.fleet, "a"))


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_a_promise_that_nobody_takes_up_expires(scene: Scene) -> None:
    assert scene.offer("p") == ["a"]
    scene.now_s = 59
    assert scene.extender.sweep() == []
    assert scene.free == 1000
    scene.now_s = 60
    assert scene.extender.sweep() == []
    assert scene.free == 2000


async def test_a_refused_pod_can_go_when_a_promise_has_expired(scene: Scene) -> None:
    assert [scene.offer(name) for name in "pqr"] == [["a"], ["a"], []]
    assert scene.extender.decider.could_go_now(10) == []
    scene.now_s = 61
    scene.extender.sweep()
    assert scene.extender.decider.freed.is_set()
    assert scene.extender.decider.could_go_now(10) == [("ns", "r")]


async def test_a_binding_without_an_answer_is_looked_up_before_anybody_else_gets_the_gpu(scene: Scene) -> None:
    scene.offer("p")
    scene.binder.error = Unreachable("cut off")
    assert "cut off" in await scene.bind("p")
    (asked,) = scene.extender.sweep()
    assert asked.uid == "p"
    assert scene.free == 1000
    scene.extender.looked_up(asked, scene.pod("p", bound_to="a"))
    assert scene.extender.fleet.holdings["p"].stage is Stage.BOUND
    scene.now_s = 1e9
    assert scene.extender.sweep() == []
    assert scene.free == 1000


@pytest.mark.parametrize("found", [None, "unbound", "another"])
async def test_a_binding_that_did_not_happen_is_forgotten(scene: Scene, found: str | None) -> None:
    scene.offer("p")
    scene.binder.error = Unreachable("cut off")
    await scene.bind("p")
    (asked,) = scene.extender.sweep()
    pod = None if found is None else scene.pod("p")
    if pod is not None and found == "another":
        pod["metadata"]["uid"] = "made anew"
        pod["spec"]["nodeName"] = "a"
    scene.extender.looked_up(asked, pod)
    assert scene.free == 2000


async def test_a_binding_that_is_never_seen_is_looked_up(scene: Scene) -> None:
    scene.offer("p")
    assert await scene.bind("p") == ""
    scene.now_s = 31
    (asked,) = scene.extender.sweep()
    assert asked.stage is Stage.ASSUMED
    # Looked up again later if the API server did not answer this time.
    assert scene.extender.sweep() == []
    scene.now_s = 62
    assert len(scene.extender.sweep()) == 1


async def test_a_pod_that_is_gone_gives_its_gpu_back_at_once(scene: Scene) -> None:
    scene.offer("p")
    scene.binder.error = NotFound(404, "NotFound", "no such pod")
    assert "no such pod" in await scene.bind("p")
    assert scene.free == 2000


async def test_a_refused_binding_keeps_its_gpu_until_the_schedulers_own_shows(scene: Scene) -> None:
    scene.offer("p")
    scene.binder.error = ApiError(403, "Forbidden", "another replica leads")
    await scene.bind("p")
    assert scene.free == 1000
    scene.seen("p", bound_to="a")
    assert scene.free == 1000
    scene.extender.pod_changed(Change(ChangeKind.DELETED, ("ns", "p"), scene.extender.pods["p"], None))
    assert scene.free == 2000


async def test_the_watch_may_be_faster_than_the_answer(scene: Scene) -> None:
    scene.offer("p")
    scene.binder.answer.clear()
    binding = asyncio.create_task(scene.bind("p"))
    await asyncio.sleep(0)
    scene.seen("p", bound_to="a")
    scene.binder.answer.set()
    assert await binding == ""
    assert scene.extender.fleet.holdings["p"].stage is Stage.BOUND


async def test_a_scheduler_that_hangs_up_does_not_stop_the_binding(scene: Scene) -> None:
    scene.offer("p")
    scene.binder.answer.clear()
    binding = asyncio.create_task(scene.bind("p"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    binding.cancel()
    scene.binder.answer.set()
    await scene.extender.binds.settle()
    assert scene.extender.fleet.holdings["p"].stage is Stage.ASSUMED
    assert scene.binder.sent == ["p"]


async def test_a_pod_that_comes_again_is_placed_anew_not_twice(scene: Scene) -> None:
    for _ in range(5):
        assert scene.offer("p") == ["a"]
        assert scene.free == 1000
