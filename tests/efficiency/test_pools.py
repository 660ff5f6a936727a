"""Which pool a node is counted for."""

from typing import Any

from kopt.cluster.workloads.kueue.pool_sizes import node_pools


def node(name: str, gpus: int = 8, **labels: str) -> dict[str, Any]:
    product = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    return {
        "metadata": {"name": name, "labels": {**product, **labels}},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
    }


def flavor(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeLabels": labels}}


def test_the_flavor_that_says_most_of_a_node_is_its_pool() -> None:
    flavors = [flavor("any", zone="z"), flavor("fast", zone="z", speed="high"), flavor("other", zone="y")]
    nodes = [node("a", zone="z"), node("b", zone="z", speed="high"), node("c")]
    assert node_pools(flavors, nodes, []) == {"a": "any", "b": "fast", "c": "NVIDIA-L4"}


def test_nodes_without_gpus_are_of_no_pool() -> None:
    labels = {"metadata": {"name": "cpu", "labels": {}}, "status": {"allocatable": {"cpu": "8"}}}
    assert node_pools([flavor("all")], [labels], []) == {}
