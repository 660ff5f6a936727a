"""A reservation under the real KAI Scheduler: placeholders take the quota back, and its owner's jobs go before them."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from .conftest import BATCH, CRDS, GPU, GPUS_PER_NODE, KIND, SYSTEM, Start, Team, stamp

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
QUEUE = ("scheduling.run.ai/v2", "Queue")
PRIORITY_CLASS = "reservations-placeholders"
Object = dict[str, Any]


class KaiTeam(Team):
    """Two nodes of four GPUs; ``nightly`` has quota of one of them, and ``gpus`` of the other."""

    def submit(self, name: str, gpus: int, queue: str = "gpus", longest_s: int = 0, **annotations: str) -> None:
        pods, each = max(1, gpus // GPUS_PER_NODE), min(gpus, GPUS_PER_NODE)
        labels = {QUEUE_LABEL: f"{self.space}-{queue}"}
        container = {"name": "train", "image": "team/train:1", "resources": {"limits": {GPU: str(each)}}}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        spec |= {"schedulerName": SCHEDULER, "nodeSelector": self._selector}
        job = {"parallelism": pods, "completions": pods, "template": {"metadata": {"labels": labels}, "spec": spec}}
        metadata = {"name": name, "namespace": self.space, "labels": labels}
        self.api.create({"apiVersion": BATCH[0], "kind": BATCH[1], "metadata": metadata, "spec": job})

    @property
    def selector(self) -> dict[str, str]:
        return self._selector

    def clear(self) -> None:
        for each in self.api.list(*KIND, self.space):
            self.api.delete(*KIND, each["metadata"]["name"], self.space)
        for job in self.api.list(*BATCH, self.space):
            self.ends(job["metadata"]["name"])
        wait_for(lambda: not self.api.list("v1", "Pod", self.space), what="the pods are gone")
        self.api.delete_all("scheduling.run.ai/v2alpha2", "PodGroup", self.space)

    def queues(self) -> None:
        bounds = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
        names = [(f"{self.space}-all", "", 8), *((f"{self.space}-{name}", f"{self.space}-all", 4) for name in QUEUES)]
        for name, parent, gpus in names:
            resources = {"cpu": bounds, "memory": bounds, "gpu": bounds | {"quota": gpus}}
            spec: Object = {"resources": resources} | ({"parentQueue": parent} if parent else {})
            self.api.create({"apiVersion": QUEUE[0], "kind": QUEUE[1], "metadata": {"name": name}, "spec": spec})


QUEUES = ("gpus", "nightly")


@pytest.fixture
def team(control_plane: ControlPlane, kwok: Kwok, kai: Kai) -> Iterator[KaiTeam]:
    control_plane.apply_crds([CRDS / "kaiworeservations.yaml"])
    control_plane.api.namespace(SYSTEM)
    control_plane.api.priority_class(PRIORITY_CLASS, -1_000_000, "Never")
    with kwok.nodes(2, gpus=GPUS_PER_NODE) as nodes:
        space = control_plane.api.space("kai-reserved", labels={"kaiwo.ai/managed": "true"})
        team = KaiTeam(control_plane, space, dict(nodes.selector))
        team.queues()
        yield team
        team.clear()
        for name in ("gpus", "nightly", "all"):
            team.api.delete(*QUEUE, f"{space}-{name}")


def test_the_quota_is_taken_back_for_it_and_its_owner_runs_on_it(team: KaiTeam, controller: Start) -> None:
    controller("--mode=enforce", "--engine=kai", f"--priority-class={PRIORITY_CLASS}")
    for name in ("mine", "borrows"):
        team.submit(name, 4)
        wait_for(lambda name=name: team.runs(name), what=f"{name} runs")
    start_s = float(int(time.time()) + 3600)
    times = {"start": start_s, "until": start_s + 600.0, "lead": "8s", "unusedAfter": "3s"}
    team.reserve(queueName=f"{team.space}-nightly", nodeSelector=team.selector, **times)
    wait_for(lambda: team.phase() == "Scheduled", what="it is accepted")
    assert team.hold_jobs() == [], "nothing is held before the lead, and others use the GPUs"
    start_s = float(int(time.time() + 12.0))
    team.move(start_s, start_s + 600.0)
    wait_for(lambda: team.held() == 4, 60, "KAI has taken back what was borrowed")
    assert time.time() >= start_s - 8.0
    assert sum(map(team.runs, ("mine", "borrows"))) == 1, "one of two, as many as the quota of their queue"
    wait_for(lambda: team.status()["account"].get("metAt"), 60, "it is met")
    wait_for(lambda: team.phase() == "Active", 60, "it has started")
    team.submit("own", 4, queue="nightly")
    wait_for(lambda: team.runs("own"), 60, "its owner runs on it")
    wait_for(lambda: not team.hold_jobs() and team.status()["usedGpus"] == 4, what="nothing is held beside it")
    team.ends("own")
    wait_for(lambda: team.phase() == "Released", 60, "unused it is given back")
    wait_for(lambda: all(map(team.runs, ("mine", "borrows"))), 60, "others have the GPUs again")
    assert stamp(start_s) == team.status()["start"]
