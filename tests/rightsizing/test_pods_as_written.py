"""Pods and their history as the API server has them."""

import pytest

from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.resize_history import RESIZES, resizes_of, written
from kopt.cluster.workloads.pod_resize import ResizeState, resize_patch, resize_state, resources_of
from kopt.core.units import GIB, MIB
from kopt.core.workload.rightsizing import Bounds, Lever, Outcome, Resize, ResizeRecord

CPU = Resize("main", Lever.CPU, Bounds(8000, 8000), Bounds(4500, 5000))
MEMORY = Resize("main", Lever.MEMORY, Bounds(64 * GIB), Bounds(32 * GIB + 16 * MIB))


def test_resources_and_policies_of_containers_are_read() -> None:
    pod = {
        "spec": {
            "initContainers": [{"name": "get", "resources": {"requests": {"cpu": "1"}}}],
            "containers": [
                {
                    "name": "main",
                    "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": 2}},
                    "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
                }
            ],
        }
    }
    main, init = resources_of(pod)
    assert (main.cpu, main.memory, main.restarts_for) == (Bounds(1500, 2000), Bounds(GIB), {Lever.MEMORY})
    assert (init.name, init.resizable) == ("get", False)


def test_resources_of_the_pod_as_a_whole_are_not_touched() -> None:
    with pytest.raises(ValueError, match="of its own"):
        resources_of({"spec": {"resources": {"limits": {"cpu": "8"}}, "containers": []}})


def test_a_patch_names_one_container_and_one_resource() -> None:
    assert resize_patch(CPU) == {
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "4500m"}, "limits": {"cpu": "5"}}}]}
    }
    (container,) = resize_patch(MEMORY)["spec"]["containers"]
    assert container["resources"] == {"requests": {"memory": "32784Mi"}}


@pytest.mark.parametrize(
    ("resources", "conditions", "state"),
    [
        ({"requests": {"cpu": "4500m"}, "limits": {"cpu": "5"}}, [], ResizeState.ACTUATED),
        ({"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}, [], ResizeState.PENDING),
        ({}, [], ResizeState.PENDING),
        ({"requests": {"cpu": "8"}}, [("PodResizePending", "Deferred")], ResizeState.REFUSED),
        ({"requests": {"cpu": "8"}}, [("PodResizePending", "Infeasible")], ResizeState.REFUSED),
        ({"requests": {"cpu": "8"}}, [("PodResizeInProgress", "Error")], ResizeState.REFUSED),
        ({"requests": {"cpu": "4500m"}, "limits": {"cpu": "5"}}, [("PodResizeInProgress", "")], ResizeState.PENDING),
    ],
)
def test_what_the_kubelet_made_of_a_change(
    resources: dict[str, object], conditions: list[tuple[str, str]], state: ResizeState
) -> None:
    status = {
        "containerStatuses": [{"name": "main", "resources": resources}],
        "conditions": [{"type": kind, "status": "True", "reason": reason} for kind, reason in conditions],
    }
    assert resize_state({"status": status}, CPU)[0] is state


def test_a_history_is_read_as_it_was_written() -> None:
    records = [
        ResizeRecord(MEMORY, 1000.0),
        ResizeRecord(CPU, 0.0, Outcome.UNDONE, 60.0, "Steps are slower."),
    ]
    assert resizes_of({"metadata": {"annotations": {RESIZES: written(records)}}}) == records


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "[{}]",
        "nonsense",
        written([ResizeRecord(CPU, 0.0)]).replace("8000", "-1"),
        written([ResizeRecord(CPU, 0.0)]).replace("8000", "true"),
        written([ResizeRecord(CPU, 0.0)]).replace("1970", "99999"),
    ],
)
def test_nonsense_in_the_annotation_is_said(text: str) -> None:
    with pytest.raises(AnnotationError, match=RESIZES):
        resizes_of({"metadata": {"annotations": {RESIZES: text}}})
