"""The way to the API server is cut while GPUs are being taken back, and opens again after the Lease is lost."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from controlplane.processes import wait_for
from cut_off import way_to

from .conftest import Controller, Object, Scene
from .test_with_kueue import lend_to

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
AGENT = "kopt-reallocation"


@pytest.mark.long
def test_it_goes_on_after_the_way_to_the_api_server_was_cut(
    scene: Scene, controller: Callable[..., Controller], tmp_path: Path
) -> None:
    saved_at_s = time.time() - 30
    with way_to(scene.plane.kubeconfig, tmp_path) as way:
        one = controller(kubeconfig=way.kubeconfig)
        lend_to(scene, "one", "two")
        scene.note("two", "CKPT_WRITING", safe=False, saved_s=saved_at_s - time.time())
        scene.expect(4, 5, 5, 5.9)
        wait_for(lambda: scene.held() == {"one"}, what="the one that may be stopped is told to go")
        scene.expect(7, 7, 7, 8)
        wait_for(lambda: scene.quota() == 0 and scene.status().get("reclaiming"), what="the rest is to be given back")
        way.close()
        one.server.wait_until(lambda: one.metric("kopt_reallocation_leading") == 0.0, what="it does not lead any more")
        assert (scene.quota(), scene.held()) == (0, {"one"})
        # The same checkpoint as before: what moves would be read as a rhythm.
        scene.note("two", saved_s=saved_at_s - time.time())
        way.open()
        wait_for(lambda: scene.held() == {"one", "two"}, what="the other is told to go")
        wait_for(lambda: scene.runs() == set() and "reclaiming" not in scene.status(), what="all is given back")
        scene.expect(2, 2.4, 2.6, 2.9)
        wait_for(lambda: scene.runs() == {"one", "two"}, what="both go on")
        wait_for(lambda: scene.lent(5) and scene.quota() == 5, what="five GPUs are lent again")
    assert scene.held() == set()
    workloads = {scene.workload(name)["metadata"]["name"] for name in ("one", "two")}
    written = Counter(one["name"] for one in audited(scene, AGENT, "patch", "workloads"))
    assert written == dict.fromkeys(workloads, 2), "each is told to go once, and let go once"
    wait_for(
        lambda: len(audited(scene, "job-controller", "create", "pods")) == 4, what="each began once, and once again"
    )


def audited(scene: Scene, who: str, verb: str, resource: str) -> list[Object]:
    """What came through of a program's requests about objects of the scene's namespace, by the audit log."""
    return [
        entry["objectRef"]
        for entry in scene.plane.audit_entries(who)
        if (entry["verb"], entry["objectRef"]["resource"]) == (verb, resource)
        and entry["objectRef"].get("namespace") == scene.space
        and entry["responseStatus"]["code"] in (200, 201)
    ]
