"""A pool lends one flavour of a queue with two in a cohort: nothing else changes, and nothing lent leaves the queue."""

from collections.abc import Callable, Iterator

import pytest
from controlplane.api import has_condition
from controlplane.kueue import Kueue, admitted
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from .conftest import CLUSTER_QUEUE, GPU, POOL, Controller, Object, Scene
from .endpoint import Endpoint

VERSION = CLUSTER_QUEUE[0]
LABEL = "example.com/gpu"


class TwoFlavors(Scene):
    """Two GPUs of each flavour are the queue's own, which may borrow more of the first in its cohort."""

    nodes: dict[str, str]

    def on(self, flavor: str) -> "TwoFlavors":
        """Pods that follow are for nodes of this flavour."""
        self._selector = {**self.nodes, LABEL: f"{self.space}-{flavor}"}
        return self

    def limits(self, flavor: str) -> tuple[str, str | None]:
        """Nominal quota and lending limit of the queue's GPUs."""
        document = self.api.get(*CLUSTER_QUEUE, self.queue, "")
        item = next(item for item in document["spec"]["resourceGroups"][0]["flavors"] if item["name"].endswith(flavor))
        quota = next(resource for resource in item["resources"] if resource["name"] == GPU)
        return quota["nominalQuota"], quota.get("lendingLimit")


def cluster_queue(name: str, cohort: str, own: int, borrows: dict[str, str]) -> Object:
    flavors = []
    for flavor in ("a100", "h100"):
        quota = {"name": GPU, "nominalQuota": str(own)}
        if flavor in borrows:
            quota["borrowingLimit"] = borrows[flavor]
        flavors.append({"name": f"{cohort}-{flavor}", "resources": [quota, {"name": "cpu", "nominalQuota": "100"}]})
    spec = {
        "namespaceSelector": {},
        "cohort": cohort,
        "resourceGroups": [{"coveredResources": [GPU, "cpu"], "flavors": flavors}],
    }
    return {"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def two(plane: ControlPlane, kueue: Kueue, kwok: Kwok, forecasts: Endpoint) -> Iterator[TwoFlavors]:
    space = plane.api.space("cohort", {"kaiwo.ai/managed": "true"})
    with kwok.nodes(2, gpus=10) as nodes:
        for node, name in zip(nodes, ("a100", "h100"), strict=True):
            flavor = f"{space}-{name}"
            plane.api.patch("v1", "Node", node, {"metadata": {"labels": {LABEL: flavor}}}, "")
            spec = {"nodeLabels": {LABEL: flavor}}
            plane.api.apply(
                {"apiVersion": VERSION, "kind": "ResourceFlavor", "metadata": {"name": flavor}, "spec": spec}
            )
        for name, own, borrows in (("gpus", 2, {"h100": "0"}), ("other", 0, {})):
            made = cluster_queue(f"{space}-{name}", space, own, borrows)
            local = {"clusterQueue": made["metadata"]["name"]}
            about = {"name": name, "namespace": space}
            plane.api.apply(made, {"apiVersion": VERSION, "kind": "LocalQueue", "metadata": about, "spec": local})
            plane.api.wait(VERSION, "LocalQueue", name, lambda it: has_condition(it, "Active"), space)
        scene = TwoFlavors(plane, space, dict(nodes.selector), f"{space}-gpus", forecasts)
        scene.nodes = dict(nodes.selector)
        yield scene
        plane.api.delete(*POOL, space, "")
        for name in scene.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        plane.api.delete_all("v1", "Pod", space, "app=chat")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


def test_only_the_pools_flavour_is_lent_and_none_of_it_leaves(
    two: TwoFlavors, controller: Callable[..., Controller]
) -> None:
    controller()
    two.on("h100").serve("chat-0", "chat-1")
    # Another model of the service, on nodes that the pool has nothing to do with.
    two.on("a100").serve("elsewhere-0", "elsewhere-1", "elsewhere-2", "elsewhere-3")
    two.expect(2, 2.4, 2.6, 2.9)
    two.pool(borrowers=[{"system": "Kueue", "queue": two.queue, "flavor": f"{two.space}-h100"}])
    wait_for(lambda: two.lent(5), what="five GPUs are lent")
    wait_for(lambda: two.limits("h100") == ("7", "2"), what="the queue may use them, and lends what it owns")
    assert two.limits("a100") == ("2", None)
    two.on("h100").submit("too-much", 3, queue="other")
    two.run("thief", 2, queue="other")
    assert not admitted(two.workload("too-much")), "only what the queue owns can be borrowed"
    two.run("borrower", 5)
    two.note("borrower")
    # Its own two are borrowed by the other queue, so all five are the pool's.
    wait_for(lambda: two.status()["borrowedGpus"] == 5, what="they are borrowed")
    two.expect(7, 7, 7, 8)
    wait_for(lambda: two.held() == {"borrower"}, what="it is told to go")
    wait_for(lambda: two.limits("h100") == ("2", None), what="the queue has its own quota again")
    assert two.limits("a100") == ("2", None)
    assert two.runs() == {"thief"}


@pytest.mark.long
def test_a_queue_that_may_borrow_the_same_flavour_elsewhere_is_not_lent_to(
    two: TwoFlavors, controller: Callable[..., Controller]
) -> None:
    controller()
    two.on("a100").serve("chat-0")
    two.expect(2, 2.4, 2.6, 2.9)
    two.pool(borrowers=[{"system": "Kueue", "queue": two.queue, "flavor": f"{two.space}-a100"}])
    wait_for(lambda: two.condition("Ready")["reason"] == "Cohort", what="it says that it cannot lend to it")
    assert two.limits("a100") == ("2", None)
