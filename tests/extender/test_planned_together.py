"""Pods that wait are planned together: reserved in one step, given what was planned, and nothing is kept for long."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.controllers.extender.binding.request import Binder
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.configuration import scheduler_configuration
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.protocol import parse_offer
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.core.decision import Mode
from kopt.policies.placement.fleet import Fleet
from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_books import free, node
from tests.extender.test_no_double_booking import assert_no_gpu_is_given_twice, bound_pods

Start = Callable[..., RunningExtender]
SIZES = {"three": 3, "two": 2, "four": 4}
"""On nodes with 5 and 4 GPUs: best fit puts three on 4, two on 5, and four waits."""


class Nowhere(Binder):
    """Nothing is bound here."""

    def __init__(self) -> None:
        pass


class Scene:
    """Three pods that wait for two nodes."""

    def __init__(self, joint: int) -> None:
        self.now_s = 0.0
        settings = ExtenderSettings(Mode.ENFORCE, joint=joint)
        self.extender = Extender(Fleet(), Nowhere(), settings, ExtenderMetrics(), clock=lambda: self.now_s)
        for name, gpus in (("a", 5), ("b", 4)):
            self.extender.node_changed(Change(ChangeKind.ADDED, ("", name), None, node(name, gpus)))

    def pod(self, name: str, **spec: Any) -> Object:
        document = gpu_pod(name, "ns", SIZES[name])
        document["metadata"] |= {"uid": name, "generation": 1}
        document["spec"] |= spec
        return document

    def seen(self, name: str, **spec: Any) -> None:
        view = self.extender.pod_state(self.pod(name, **spec))
        self.extender.pod_changed(Change(ChangeKind.ADDED, view.key, None, view))

    def offer(self, name: str, nodes: str = "ab") -> list[str]:
        body = orjson.dumps({"Pod": self.pod(name), "Nodes": None, "NodeNames": list(nodes)})
        return list(orjson.loads(self.extender.filter(parse_offer(body)))["NodeNames"])


@pytest.mark.parametrize(("joint", "placed"), [(0, 2), (10, 3), (2, 2)])
async def test_pods_that_would_block_each_other_all_find_a_place(joint: int, placed: int) -> None:
    scene = Scene(joint)
    for name in SIZES:
        scene.seen(name)
    assert sum(bool(scene.offer(name)) for name in SIZES) == placed
    for name in SIZES:
        decision = scene.extender.log.find(("ns", name))
        assert decision is not None
        assert decision.to_dict()["planned_together"] == (3 if joint == 10 else decision.together)


async def test_what_was_planned_and_is_not_asked_for_is_free_again() -> None:
    scene = Scene(10)
    for name in SIZES:
        scene.seen(name)
    assert scene.offer("three")
    assert sum(free(scene.extender.fleet, "a") + free(scene.extender.fleet, "b")) == 0
    scene.now_s = 11
    scene.extender.sweep()
    assert sum(free(scene.extender.fleet, "a") + free(scene.extender.fleet, "b")) == 6000
    assert scene.offer("four")


async def test_a_pod_that_is_not_offered_its_node_gets_another_or_none() -> None:
    scene = Scene(10)
    for name in SIZES:
        scene.seen(name)
    (planned,) = scene.offer("three")
    other = "b" if scene.extender.fleet.holdings["two"].node == "a" else "a"
    assert scene.offer("two", other) == []
    assert "two" not in scene.extender.fleet.holdings
    assert scene.offer("two") == [planned]


async def test_pods_that_may_go_elsewhere_or_not_yet_are_not_planned_with_it() -> None:
    scene = Scene(10)
    scene.seen("three")
    scene.seen("two", nodeSelector={"zone": "far"})
    scene.seen("four", schedulingGates=[{"name": "wait"}])
    assert scene.offer("three")
    assert set(scene.extender.fleet.holdings) == {"three"}


def test_a_burst_is_bound_as_planned(control_plane: ControlPlane, kwok: Kwok, start_extender: Start) -> None:
    api = control_plane.api
    space = api.space("ext-joint")
    with kwok.nodes(1, gpus=5, labels={"set": space}), kwok.nodes(1, gpus=4, labels={"set": space}):
        extender = start_extender(control_plane, space, "--joint=10")
        others = extender.metric("kopt_extender_pending")  # what earlier tests left unbound
        for name, gpus in SIZES.items():
            api.create(gpu_pod(name, space, gpus, scheduler=space, selector={"set": space}))
        wait_for(lambda: extender.metric("kopt_extender_pending") == others + 3)
        scheduler = control_plane.start_scheduler(scheduler_configuration(extender.url, space, joint=True))
        try:
            wait_for(lambda: len(bound_pods(api, space)) == 3)
        finally:
            scheduler.kill()
        assert_no_gpu_is_given_twice(bound_pods(api, space))
        assert {extender.explain(space, name)["planned_together"] for name in SIZES} == {3}
