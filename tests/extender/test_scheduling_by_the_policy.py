"""A real kube-scheduler binds GPU pods to the nodes, and with the GPUs, that the policy names."""

from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from controlplane.api import Api
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from tests.extender.conftest import Object, RunningExtender, gpu_pod

Start = Callable[..., RunningExtender]
INDICES = "kaiwo.ai/gpu-indices"


def bound(api: Api, name: str, namespace: str) -> Object:
    return api.wait("v1", "Pod", name, lambda pod: bool(pod["spec"].get("nodeName")), namespace)


def indices(pod: Object) -> list[int]:
    return [int(one) for one in pod["metadata"]["annotations"][INDICES].split(",")]


def held(pods: Iterable[Object]) -> Counter[tuple[str, int]]:
    """How many pods were given each GPU of each node."""
    return Counter((pod["spec"]["nodeName"], gpu) for pod in pods for gpu in indices(pod))


def test_pods_fill_the_node_that_the_policy_names_with_distinct_gpus(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-fill")
    with kwok.nodes(4, gpus=8) as nodes:
        extender = start_extender(control_plane, space)
        extender.start_scheduler("ext-fill")
        pods = []
        for number in range(8):
            api.create(gpu_pod(f"one-{number}", space, scheduler="ext-fill", selector=nodes.selector))
            pods.append(bound(api, f"one-{number}", space))
        # A scheduler without us spreads them over all four nodes.
        assert len({pod["spec"]["nodeName"] for pod in pods}) == 1
        assert set(held(pods).values()) == {1}
        # The pod may be seen bound before the extender has its answer.
        wait_for(lambda: extender.explain(space, "one-7")["outcome"] == "bound", what="the decision is noted")
        why = extender.explain(space, "one-7")
        assert why["node"] == pods[7]["spec"]["nodeName"]
        assert why["gpu_indices"] == indices(pods[7])
        assert why["reasons"][0]["code"] == "BEST_NODE"
        assert extender.metric('kopt_extender_bindings_total{reason="bound"}') == 8


def test_replicas_of_a_service_go_to_different_nodes_and_pods_of_a_job_do_not(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-spread")
    with kwok.nodes(3, gpus=4) as nodes:
        extender = start_extender(control_plane, space)
        extender.start_scheduler("ext-spread")
        spec = gpu_pod("p", space, 2, scheduler="ext-spread", selector=nodes.selector)["spec"]
        job = {"parallelism": 2, "completions": 2, "template": {"spec": spec | {"restartPolicy": "Never"}}}
        labels = {"app": "chat"}
        service = {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec | {"restartPolicy": "Always"}},
        }

        def homes(selector: str) -> set[str]:
            pods = wait_for(
                lambda: (
                    found
                    if len(found := api.list("v1", "Pod", space, selector)) == 2
                    and all(pod["spec"].get("nodeName") for pod in found)
                    else None
                )
            )
            return {pod["spec"]["nodeName"] for pod in pods}

        api.create(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": space}, "spec": job}
        )
        assert len(homes("batch.kubernetes.io/job-name=j")) == 1
        meta = {"name": "chat", "namespace": space}
        api.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": service})
        assert len(homes("app=chat")) == 2


@pytest.mark.parametrize("shortlist", [1, 3])
def test_the_winner_is_bound_also_when_the_scheduler_scores_too(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start, shortlist: int
) -> None:
    api = control_plane.api
    space = api.space(f"ext-score-{shortlist}")
    with kwok.nodes(5, gpus=8) as nodes:
        extender = start_extender(control_plane, space, f"--shortlist={shortlist}")
        extender.start_scheduler(space)
        for number in range(10):
            api.create(gpu_pod(f"two-{number}", space, 2, scheduler=space, selector=nodes.selector))
            pod = bound(api, f"two-{number}", space)
            named = extender.explain(space, f"two-{number}")
            ranked = [named["score"], *(one["score"] for one in named["runner_ups"])]
            assert ranked == sorted(ranked, reverse=True)
            assert pod["spec"]["nodeName"] == named["node"]
        asked = extender.metric('kopt_extender_calls_total{outcome="answered",verb="prioritize"}')
        assert asked == (10 if shortlist > 1 else 0)
