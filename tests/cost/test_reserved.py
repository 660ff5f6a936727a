"""GPUs that are held for a reservation are its namespace's, and no workload's of the Job that holds them."""

from typing import Any

from kopt.cluster.client.resources import COMPONENT_LABEL, HOLDS_COMPONENT, PART_OF, PART_OF_LABEL
from kopt.cluster.objects.custom.reservation import RESERVATION_LABEL, held_for
from kopt.controllers.meter.views import pod_reader

HOLDING = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: HOLDS_COMPONENT, RESERVATION_LABEL: "night"}


def pod(labels: dict[str, str]) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "night-1", "uid": "1", "controller": True}
    return {
        "metadata": {
            "name": "night-1-0",
            "namespace": "team",
            "uid": "2",
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "n0", "containers": [{"name": "hold", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]},
    }


def workload(labels: dict[str, str]) -> str:
    observed = pod_reader(())(pod(labels))
    assert observed is not None
    assert observed.attributes.namespace == "team"
    return str(observed.attributes.workload)


def test_what_holds_is_charged_as_the_reservation() -> None:
    assert workload(HOLDING) == "kaiworeservations/night"
    assert workload({}) == "jobs/night-1"


def test_a_label_alone_makes_no_hold() -> None:
    assert held_for(pod({RESERVATION_LABEL: "night"})) == ""
    assert workload({RESERVATION_LABEL: "night"}) == "jobs/night-1"
