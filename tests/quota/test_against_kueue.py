"""What our arithmetic of quota says is what the real Kueue does, in random cohort trees with one or two flavours.

Workloads come one after the other to many trees at once; each is admitted, preempts, or stays pending, and the flavour
and the victims must be those that were computed from the same objects a moment before.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from controlplane.api import has_condition
from controlplane.kueue import Kueue
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.workloads.kueue.queues import (
    admitted_of,
    demand_of,
    read_cluster_queue,
    read_cohort,
    read_flavor,
)
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.policies.quota import Assignment, Mode, QuotaTree, assign

from .cohort_trees import GPU, Object, random_case

VERSION = "kueue.x-k8s.io/v1beta1"
FIRST = 30
"""The first seed of fifteen trees in which every mode occurs."""
ENOUGH = pytest.mark.parametrize(
    ("first", "cases"), [(FIRST, 15), pytest.param(1000, 300, marks=[pytest.mark.thorough, pytest.mark.timeout(1800)])]
)


@dataclass
class Case:
    """One tree, in a namespace of its own."""

    name: str
    space: str
    objects: Sequence[Object]
    jobs: Sequence[Object]
    flavors: Sequence[Object]
    admitted: list[Object] = field(default_factory=list)
    expected: Assignment | None = None
    over: bool = False

    def expect(self, document: Object, job: Object) -> Assignment:
        nodes = [read_cohort(item) for item in self.objects if item["kind"] == "Cohort"]
        queues = {
            item["metadata"]["name"]: read_cluster_queue(item)
            for item in self.objects
            if item["kind"] == "ClusterQueue"
        }
        admitted = [admitted_of(read_kueue_workload(item)) for item in self.admitted]
        flavors = {item["metadata"]["name"]: read_flavor(item) for item in self.flavors}
        queue = queues[job["queue"]]
        tree = QuotaTree.of([*nodes, *(queue.node for queue in queues.values())], admitted)
        return assign(demand_of(read_kueue_workload(document), queue, flavors), queue.rules, tree, admitted)


def cases_of(plane: ControlPlane, first: int, number: int) -> Iterator[Case]:
    for seed in range(first, first + number):
        space = plane.api.space("quota")
        objects, jobs = random_case(seed, space)
        names = sorted({name for item in objects for name in flavors_in(item)})
        flavors = [
            {
                "apiVersion": VERSION,
                "kind": "ResourceFlavor",
                "metadata": {"name": name},
                "spec": {"nodeLabels": {"gpu": name}},
            }
            for name in names
        ]
        queues = [item["metadata"]["name"] for item in objects if item["kind"] == "ClusterQueue"]
        local = [
            {
                "apiVersion": VERSION,
                "kind": "LocalQueue",
                "metadata": {"name": name, "namespace": space},
                "spec": {"clusterQueue": name},
            }
            for name in queues
        ]
        plane.api.apply(*flavors, *objects, *local)
        yield Case(f"seed {seed}", space, objects, jobs, flavors)


def flavors_in(item: Object) -> list[str]:
    return [one["name"] for group in item["spec"].get("resourceGroups", ()) for one in group["flavors"]]


def workload(job: Object, name: str, space: str) -> Object:
    container = {"name": "a", "image": "a", "resources": {"requests": {GPU: str(job["gpus"])}}}
    spec: Object = {"containers": [container], "restartPolicy": "Never"}
    if job["selector"]:
        spec["nodeSelector"] = {"gpu": job["selector"]}
    return {
        "apiVersion": VERSION,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": space},
        "spec": {
            "queueName": job["queue"],
            "priority": job["priority"],
            "podSets": [{"name": "main", "count": 1, "template": {"spec": spec}}],
        },
    }


def decided(plane: ControlPlane, space: str, name: str) -> Object | None:
    document = plane.api.get(VERSION, "Workload", name, space)
    conditions = document.get("status", {}).get("conditions", ())
    return document if any(item["type"] == "QuotaReserved" for item in conditions) else None


@ENOUGH
def test_kueue_does_what_is_computed(control_plane: ControlPlane, kueue: Kueue, first: int, cases: int) -> None:
    every = list(cases_of(control_plane, first, cases))
    for case in every:
        for item in case.objects:
            if item["kind"] == "ClusterQueue":
                name = item["metadata"]["name"]
                control_plane.api.wait(VERSION, "LocalQueue", name, lambda it: has_condition(it, "Active"), case.space)
    seen = dict.fromkeys(Mode, 0)
    for number in range(len(every[0].jobs)):
        started = time.time()
        running = [case for case in every if not case.over]
        for case in running:
            job = case.jobs[number]
            document = control_plane.api.create(workload(job, f"w{number}", case.space))
            case.expected = case.expect(document, job)
        for case in running:
            seen[check(control_plane, case, f"w{number}")] += 1
        # Kueue counts in seconds.
        wait_for(lambda started=started: time.time() - started > 1.1)
    assert all(seen[mode] for mode in Mode), f"all modes occur: {seen}"


def check(plane: ControlPlane, case: Case, name: str) -> Mode:
    document = wait_for(lambda: decided(plane, case.space, name), what=f"Kueue has decided about {case.name} {name}")
    expected = case.expected
    assert document is not None
    assert expected is not None
    where = f"{case.name} ({case.space}) {name}: expected {expected}"
    if expected.mode is Mode.FIT:
        assert has_condition(document, "QuotaReserved"), f"{where}, Kueue: {document['status']}"
        view = read_kueue_workload(document)
        assert view.uses == dict(expected.requests), where
        case.admitted.append(document)
        return expected.mode
    assert not has_condition(document, "QuotaReserved"), f"{where}, Kueue has admitted it: {document['status']}"
    if expected.victims:
        wait_for(lambda: preempted(plane, case.space), what=f"{where}, Kueue preempts")
    victims = preempted(plane, case.space)
    assert victims == {victim.name for victim in expected.victims}, where
    # Without a job that ends, victims keep their quota: nothing more comes to this tree.
    case.over = bool(victims)
    if not victims:
        plane.api.delete(VERSION, "Workload", name, case.space)
    return expected.mode


def preempted(plane: ControlPlane, space: str) -> set[str]:
    found = plane.api.list(VERSION, "Workload", space)
    return {f"{space}/{item['metadata']['name']}" for item in found if has_condition(item, "Preempted")}
