"""A pool in ``annotate`` says what it would do, on itself and on those it would stop, and changes nothing else."""

from collections.abc import Callable

import pytest
from controlplane.processes import wait_for

from .conftest import CLUSTER_QUEUE, POOL, WORKLOAD, Controller, Object, Scene
from .test_cut_off import AGENT
from .test_with_kueue import lend_to

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ADVICE = "kaiwo.ai/reallocation"
OURS = (ADVICE, "kaiwo.ai/term")
"""What was advised, and in whose term that was written."""


def test_annotate_writes_annotations_and_status_and_nothing_else(
    scene: Scene, controller: Callable[..., Controller]
) -> None:
    controller()
    lend_to(scene, "one")
    scene.run("two", 2, askable=True)
    scene.note("two", lost=3600, saved_s=-900)
    # They borrow on; what they were lent is given back with the mode.
    scene.pool("annotate")
    wait_for(lambda: scene.quota() == 0, what="the queue has its own quota again")
    wait_for(lambda: scene.status()["observedGeneration"] == _generation(scene), what="the new mode is known")
    written, before = len(writes(scene)), state(scene)
    scene.expect(7, 7, 7, 8)
    wait_for(lambda: advised(scene), what="one is told that it would be stopped")
    wait_for(lambda: "ReclaimAdvised" in scene.events(), what="and the pool's events say so")
    wait_for(lambda: scene.status()["lentGpus"] == 0, what="and its status")
    assert (scene.runs(), scene.held()) == ({"one", "two"}, set())
    assert not scene.asked("two")
    scene.expect(2, 2.4, 2.6, 2.9)
    wait_for(lambda: scene.lent(5), what="it would lend again")
    assert state(scene) == before
    new = writes(scene)[written:]
    told = [name for verb, resource, name in new if (verb, resource) == ("patch", "workloads")]
    assert sorted(told) == sorted(advised(scene)), "each is told once"
    others = {(verb, resource) for verb, resource, _ in new} - {("patch", "workloads"), ("create", "events")}
    assert others == {("update", "lendingpools/status")}


def _generation(scene: Scene) -> int:
    return int(scene.api.get(*POOL, scene.space, "")["metadata"]["generation"])


def advised(scene: Scene) -> set[str]:
    """Workloads that carry our advice."""
    found = (scene.workload(name)["metadata"] for name in scene.jobs)
    return {one["name"] for one in found if ADVICE in one.get("annotations", {})}


def state(scene: Scene) -> dict[str, Object]:
    """Everything of Workloads, Jobs, pods and the queue that is not status, but the annotations that tell."""
    found = {"queue": _kept(scene.api.get(*CLUSTER_QUEUE, scene.queue, ""))}
    for kind in (WORKLOAD, ("batch/v1", "Job"), ("v1", "Pod")):
        found |= {f"{kind[1]} {one['metadata']['name']}": _kept(one) for one in scene.api.list(*kind, scene.space)}
    return found


def _kept(one: Object) -> Object:
    metadata = one["metadata"]
    notes = {name: value for name, value in metadata.get("annotations", {}).items() if name not in OURS}
    return {"spec": one["spec"], "labels": metadata.get("labels"), "annotations": notes, "uid": metadata["uid"]}


def writes(scene: Scene) -> list[tuple[str, str, str]]:
    """Of the controller's to what belongs to the scene, by the audit log: verb, resource, name."""
    found = [
        (one["verb"], one["objectRef"])
        for one in scene.plane.audit_entries(AGENT)
        if one["verb"] not in ("get", "list", "watch") and one["responseStatus"]["code"] < 300
    ]
    return [
        (verb, "/".join(filter(None, (one["resource"], one.get("subresource")))), one.get("name", ""))
        for verb, one in found
        if one.get("namespace") == scene.space or one.get("name") in (scene.space, scene.queue)
    ]
