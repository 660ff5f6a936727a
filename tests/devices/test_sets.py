"""Claims for several whole GPUs: the node that then has fewest left, and the GPUs between which data moves fastest."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.device_slices import DevicePool, Taint, shared_gpus, whole_gpus
from kopt.cluster.workloads.requests.devices import (
    ObservedClaim,
    choice_selector,
    device_request,
    only_request,
    read_slice,
    set_selector,
)
from kopt.controllers.devices.books import RESERVED_S, Books, SelectedSet
from kopt.controllers.devices.sets import LinkedGpus, best_gpus, linked_gpus
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.policies.partitions.layouts import layouts_of
from kopt.policies.partitions.placement import UsableSlices

DRIVER = "gpu.nvidia.com"
CLASS = {
    "spec": {
        "selectors": [
            {"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'}}
        ]
    }
}
A100 = "NVIDIA A100-SXM4-80GB"
ACROSS = [(0, 4), (1, 5), (2, 6), (3, 7)]
Object = dict[str, Any]


def gpus(node: str, count: int = 8, model: str = "NVIDIA L40S") -> DevicePool:
    return DevicePool(DRIVER, node, whole_gpus(count, model, 48, uuid=[f"GPU-{node}-{at}" for at in range(count)]))


def topology(node: str, links: list[tuple[int, int]]) -> LinkedGpus:
    spec = {
        "gpus": [{"index": at, "name": "NVIDIA A100", "uuid": f"GPU-{node}-{at}"} for at in range(8)],
        "links": [{"a": a, "b": b, "type": "NVLINK", "count": 4} for a, b in links],
    }
    return linked_gpus({"metadata": {"name": node}, "spec": spec})


class Cluster:
    def __init__(self, *pools: DevicePool, linked: dict[str, list[tuple[int, int]]] | None = None) -> None:
        self.now_s = 0.0
        self.links = {("", node): topology(node, pairs) for node, pairs in (linked or {}).items()}
        self.books = Books(lambda: self.now_s, linked=self.links)
        for pool in pools:
            for document in pool.slices():
                self.books.put_slice(("", document["metadata"]["name"]), read_slice(document))

    def select(self, count: int, key: str = "uid/gpu") -> SelectedSet | None:
        exactly = {"deviceClassName": "gpu", "count": count}
        request = only_request({"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}})
        assert request is not None
        asked = device_request(CLASS, request)
        assert asked is not None
        selection = self.books.select(asked, key, lambda _: True)
        assert selection is None or isinstance(selection, SelectedSet)
        return selection

    def allocate(self, key: str, node: str, *numbers: int) -> None:
        claim = ObservedClaim(key, tuple((DRIVER, node, f"gpu-{at}") for at in numbers), "")
        self.books.put_claim(("team", key), claim)


def test_the_set_is_the_linked_one_on_the_node_that_has_fewest_left() -> None:
    cluster = Cluster(gpus("a"), gpus("b"), linked={"a": ACROSS, "b": ACROSS})
    cluster.allocate("x", "b", 0, 1, 2)
    selection = cluster.select(2)
    assert selection is not None
    assert (selection.node, selection.gpus) == ("b", ("GPU-b-3", "GPU-b-7"))
    assert set_selector(DRIVER, selection.gpus).endswith('.uuid in ["GPU-b-3", "GPU-b-7"]')


def test_of_nodes_with_as_many_left_the_one_whose_gpus_are_linked() -> None:
    cluster = Cluster(gpus("a"), gpus("b"), linked={"b": ACROSS})
    selection = cluster.select(2)
    assert selection is not None
    assert (selection.node, selection.gpus) == ("b", ("GPU-b-0", "GPU-b-4"))


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12))
def test_no_gpu_is_selected_twice_and_what_fits_is_selected(requests: list[tuple[int, bool]]) -> None:
    cluster = Cluster(gpus("a"), gpus("b"))
    free = {node: {f"GPU-{node}-{at}" for at in range(8)} for node in "ab"}
    for number, (count, is_allocated) in enumerate(requests):
        selection = cluster.select(count, f"pod-{number}/gpu")
        if selection is None:
            assert all(len(each) < count for each in free.values())
            continue
        assert len(selection.gpus) == count
        assert free[selection.node] >= set(selection.gpus)
        free[selection.node] -= set(selection.gpus)
        if is_allocated:
            cluster.allocate(f"pod-{number}/gpu", selection.node, *(int(gpu[-1]) for gpu in selection.gpus))


def test_what_was_allocated_counts_and_a_selection_that_was_not_ends() -> None:
    cluster = Cluster(gpus("a"))
    first = cluster.select(4, "first/gpu")
    assert first is not None
    cluster.allocate("first/gpu", "a", 4, 5, 6, 7)
    second = cluster.select(4, "second/gpu")
    assert second is not None
    assert second.gpus == tuple(f"GPU-a-{at}" for at in range(4))
    assert cluster.select(1, "third/gpu") is None
    cluster.now_s = RESERVED_S + 1
    assert cluster.select(4, "third/gpu") is not None


def test_a_set_that_another_replica_selected_counts() -> None:
    cluster = Cluster(gpus("a"))
    text = '{"node": "a", "gpus": ["GPU-a-0", "GPU-a-1", "GPU-a-2", "GPU-a-3", "GPU-a-4"]}'
    cluster.books.observe(ObservedClaim("uid/gpu", (), text))
    assert cluster.select(4, "other/gpu") is None
    for nonsense in ('{"node": "a", "gpus": []}', '{"node": 1, "gpus": ["x"]}', '{"node": "a", "gpus": "x"}'):
        cluster.books.observe(ObservedClaim("third/gpu", (), nonsense))
    assert cluster.select(3, "other/gpu") is not None


def test_gpus_that_are_tainted_or_shared_are_left_alone() -> None:
    pool = gpus("a", 2)
    tainted = DevicePool(DRIVER, "a", (pool.devices[0].tainted(Taint("ecc", "NoSchedule")), pool.devices[1]))
    assert Cluster(tainted).select(2) is None
    assert Cluster(tainted).select(1) is not None
    shared = tuple(
        type(each)(each.name, {**each.attributes, "uuid": f"GPU-{at}"}, each.capacity, shared=True)
        for at, each in enumerate(shared_gpus(2, "NVIDIA L40S", 48))
    )
    assert Cluster(DevicePool(DRIVER, "a", shared)).select(2) is None
    a100 = tuple(type(each)(each.name, {**each.attributes, "productName": A100}, {}, shared=True) for each in shared)
    assert Cluster(DevicePool(DRIVER, "a", a100)).select(1) is None
    alone = tuple(type(each)(each.name, each.attributes, {}) for each in a100)
    assert Cluster(DevicePool(DRIVER, "a", alone)).select(1) is not None


def test_sets_of_gpus_are_what_is_expected_of_instances_later() -> None:
    """Whole GPUs count as often as they are asked for: costs are learned anew after 200."""
    cluster = Cluster(gpus("a", model=A100))
    for number in range(50):
        cluster.select(4, f"{number}/gpu")
    ((group, policy),) = cluster.books.learned.items()
    layouts = layouts_of(mig_geometry(find_gpu(A100)))
    alone = UsableSlices(layouts)
    for _ in range(200):
        alone.observe(len(layouts.geometry.profiles) - 1)
    assert group.model == A100
    assert policy.cost.tolist() == alone.cost.tolist() != UsableSlices(layouts).cost.tolist()


def test_what_a_driver_publishes_is_quoted() -> None:
    hostile = 'GPU-1" || true || "'
    assert set_selector(DRIVER, [hostile]).endswith(f".uuid in [{json.dumps(hostile)}]")
    assert json.dumps(hostile) in choice_selector(DRIVER, hostile, 0)


def test_links_of_other_gpus_than_a_node_publishes_are_not_believed() -> None:
    assert best_gpus(["GPU-x", "GPU-y", "GPU-z"], 2, topology("a", ACROSS)) == (0.0, ("GPU-x", "GPU-y"))


@pytest.mark.parametrize("count", [0, 33])
def test_a_count_that_no_node_has_is_left_as_it_was_written(count: int) -> None:
    exactly = {"deviceClassName": "gpu", "count": count}
    assert only_request({"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}) is None
