"""``helm install`` with deploy/values/production.yaml: every component becomes ready, is killed once, becomes ready
again, and still does what it is for."""

import time

import pytest
from chart import NAMESPACE
from controlplane.api import has_condition
from controlplane.processes import wait_for

from tests.production.installation import AGENTS, COMPONENTS, SERVICES, VALUES, Component, Installation, answers
from tests.rayservice.cluster import STARTS_WITHIN_S, bad

pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.ray,
    pytest.mark.services,
    pytest.mark.timeout(3600),
]
WORKERS = 3
each = pytest.mark.parametrize("component", [pytest.param(one, id=one.name) for one in COMPONENTS])


def test_every_workload_of_the_chart_becomes_ready(ready: Installation) -> None:
    """And is one of those that are killed below: a new one has to be added there."""
    names = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]
        for kind in ("Deployment", "DaemonSet")
        for namespace in (NAMESPACE, AGENTS)
        for one in ready.api.list("apps/v1", kind, namespace)
    }
    assert names == {component.name for component in COMPONENTS}
    assert len(ready.predictions.pods("head")) == 1
    wait_for(
        lambda: sum(has_condition(pod, "Ready") for pod in ready.predictions.pods("worker")) == WORKERS,
        STARTS_WITHIN_S,
        "all workers are ready",
    )
    answers(ready, "")


@each
def test_no_two_replicas_share_a_node(ready: Installation, component: Component) -> None:
    nodes = [pod["spec"]["nodeName"] for pod in ready.pods(component)]
    assert len(set(nodes)) == len(nodes) == component.pods


def test_no_two_workers_of_ray_share_a_node(ready: Installation) -> None:
    assert len({pod["spec"]["nodeName"] for pod in ready.predictions.pods("worker")}) == WORKERS


@each
def test_killed_it_becomes_ready_again_and_does_its_work(ready: Installation, component: Component) -> None:
    before, after = SERVICES
    component.works(ready, before)
    ready.kill(ready.leader(component))
    ready.wait_ready(component)
    component.works(ready, after)
    assert ready.ready(component), "and it stays so"


def test_a_killed_worker_comes_back_while_the_others_answer(ready: Installation) -> None:
    ready.predictions.wait_answer("1")
    with ready.predictions.asked_all_the_time() as got:
        wait_for(lambda: len(got) >= 5, what="it is asked")
        killed_s = time.monotonic()
        ready.kill(ready.predictions.pods("worker")[0])
        workers = lambda: [has_condition(pod, "Ready") for pod in ready.predictions.pods("worker")]  # noqa: E731
        wait_for(lambda: workers() == [True] * WORKERS, STARTS_WITHIN_S, "there are as many workers again")
        wait_for(lambda: len(ready.predictions.replicas()) == WORKERS, STARTS_WITHIN_S, "and as many replicas")
    # Whom it was just answering, and who was sent to it before the Service knew.
    assert all(one.at_s < killed_s + 10 for one in got if not one.good), bad(got)
    assert got[-1].good


def test_a_killed_head_is_replaced_while_the_workers_answer(ready: Installation) -> None:
    cluster = ready.predictions.wait_running()
    (head,) = ready.predictions.pods("head")
    with ready.predictions.asked_all_the_time() as got:
        wait_for(lambda: len(got) >= 5, what="it is asked")
        killed_s = time.monotonic()
        ready.api.delete("v1", "Pod", head["metadata"]["name"], NAMESPACE, gracePeriodSeconds=0)

        def replaced() -> bool:
            heads = ready.predictions.pods("head")
            return [pod["metadata"]["name"] for pod in heads] != [head["metadata"]["name"]] and all(
                has_condition(pod, "Ready") for pod in heads
            )

        wait_for(replaced, STARTS_WITHIN_S, "another head is ready")
        assert ready.predictions.wait_running() == cluster
    assert all(one.at_s < killed_s + 10 for one in got if not one.good), bad(got)
    assert got[-1].good


def test_the_job_of_an_upgrade_runs_and_leaves_everything_ready(ready: Installation) -> None:
    pods = {component.name: {pod["metadata"]["uid"] for pod in ready.pods(component)} for component in COMPONENTS}
    release = ready.predictions
    release.helm.install(ready.plane, release.values, "--values", str(VALUES))
    assert ready.api.find("batch/v1", "Job", "kopt-crds", NAMESPACE) is None, "it has ended well, and is gone"
    for component in COMPONENTS:
        ready.wait_ready(component)
    after = {component.name: {pod["metadata"]["uid"] for pod in ready.pods(component)} for component in COMPONENTS}
    assert after == pods, "nothing has changed, so nothing is started again"
