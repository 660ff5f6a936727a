"""In a cohort with two flavours, those are taken who free the quota that the waiting job can really be given."""

from collections.abc import Callable, Iterator

import pytest
from controlplane.api import has_condition
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from .teams import GPU, Controller, Object, Team

VERSION = "kueue.x-k8s.io/v1beta1"
LABEL = "example.com/gpu"


class Cohort(Team):
    """Two queues of a cohort, of four GPUs of each of two flavours each; jobs choose queue and flavour."""

    queue = "gpus"

    def into(self, queue: str, flavor: str) -> "Cohort":
        """The jobs that follow go there; any flavour suits them if none is given."""
        self.queue = queue
        self._selector = {**self.nodes, **({LABEL: flavor} if flavor else {})}
        return self

    nodes: dict[str, str]
    flavors: dict[str, str]


def cluster_queue(name: str, cohort: str, flavors: dict[str, str], reclaim: str) -> Object:
    limits = [
        {
            "name": flavor,
            "resources": [
                {"name": GPU, "nominalQuota": "4", "borrowingLimit": "4"},
                {"name": "cpu", "nominalQuota": "100"},
            ],
        }
        for flavor in flavors.values()
    ]
    spec = {
        "namespaceSelector": {},
        "cohort": cohort,
        "resourceGroups": [{"coveredResources": [GPU, "cpu"], "flavors": limits}],
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": reclaim},
    }
    return {"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def cohort(plane: ControlPlane, kueue: Kueue, kwok: Kwok, request: pytest.FixtureRequest) -> Iterator[Cohort]:
    """Eight GPUs of each flavour, on a node each."""
    space = plane.api.space("cohort", {"kaiwo.ai/managed": "true"})
    flavors = {name: f"{space}-{name}" for name in ("a100", "h100")}
    with kwok.nodes(2, gpus=8) as nodes:
        for node, flavor in zip(nodes, flavors.values(), strict=True):
            plane.api.patch("v1", "Node", node, {"metadata": {"labels": {LABEL: flavor}}}, "")
            plane.api.apply(
                {
                    "apiVersion": VERSION,
                    "kind": "ResourceFlavor",
                    "metadata": {"name": flavor},
                    "spec": {"nodeLabels": {LABEL: flavor}},
                }
            )
        plane.api.apply({"apiVersion": VERSION, "kind": "Cohort", "metadata": {"name": space}, "spec": {}})
        for name in ("gpus", "other"):
            made = cluster_queue(f"{space}-{name}", space, flavors, getattr(request, "param", "LowerPriority"))
            local = {"clusterQueue": made["metadata"]["name"]}
            about = {"name": name, "namespace": space}
            plane.api.apply(made, {"apiVersion": VERSION, "kind": "LocalQueue", "metadata": about, "spec": local})
            plane.api.wait(VERSION, "LocalQueue", name, lambda it: has_condition(it, "Active"), space)
        made = Cohort(plane, space, dict(nodes.selector))
        made.nodes, made.flavors = dict(nodes.selector), flavors
        yield made
        for name in made.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


def fill(cohort: Cohort) -> None:
    """Each queue uses its four of the first flavour; of the second the other queue has borrowed all that there is."""
    a100, h100 = cohort.flavors["a100"], cohort.flavors["h100"]
    cohort.into("gpus", a100).run("own-a100", 4)
    cohort.into("other", a100).run("other-a100", 4)
    for name in ("oldest", "middle", "newest", "last"):
        cohort.into("other", h100).run(name, 2)
    for name in ("own-a100", "other-a100", "middle", "newest", "last"):
        cohort.note(name, lost=9000)
    cohort.note("oldest", lost=50)


@pytest.mark.parametrize("cohort", ["LowerPriority", pytest.param("Any", marks=pytest.mark.long)], indirect=True)
def test_borrowed_quota_of_the_flavour_that_suits_is_taken_back(
    cohort: Cohort, controller: Callable[..., Controller]
) -> None:
    controller("--mode=enforce")
    fill(cohort)
    # It would lose least of all, and its quota is of no use.
    cohort.note("other-a100", lost=1)
    cohort.note("middle", "CKPT_WRITING", safe=False)
    cohort.into("gpus", cohort.flavors["h100"]).submit("urgent", 2, "high")
    wait_for(lambda: cohort.admitted("urgent"), what="the urgent job has its GPUs")
    assert cohort.evicted() == {"oldest"}
    decision = cohort.decision("urgent")
    assert decision["verdict"] == "preempt"
    wait_for(lambda: not cohort.left_over(), what="every priority is back")


@pytest.mark.long
def test_of_two_flavours_that_suit_the_one_that_loses_least(
    cohort: Cohort, controller: Callable[..., Controller]
) -> None:
    controller("--mode=enforce")
    fill(cohort)
    cohort.note("own-a100", lost=1)
    cohort.into("gpus", "").submit("urgent", 4, "high")
    wait_for(lambda: cohort.admitted("urgent"), what="the urgent job has its GPUs")
    assert cohort.evicted() == {"own-a100"}
    wait_for(lambda: not cohort.left_over(), what="every priority is back")


@pytest.mark.long
def test_a_flavour_that_is_free_is_not_made_room_in(cohort: Cohort, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce")
    cohort.into("gpus", cohort.flavors["a100"]).run("full", 8)
    made = cohort.into("gpus", "").submit("urgent", 4, "high")
    assert "kaiwo.ai/held" not in made["metadata"].get("labels", {})
    wait_for(lambda: cohort.runs() == {"full", "urgent"})
