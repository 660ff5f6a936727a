"""Devices of dynamic resource allocation on the map of GPUs: slices and claims in any order, and what goes again."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.resources import Object
from kopt.controllers.overview.devices.claims import allocated_devices
from kopt.controllers.overview.devices.gpu_map import GpuMapKeeper

DRIVER = "gpu.nvidia.com"
NODE: Object = {
    "metadata": {"name": "gpu-0", "labels": {}},
    "spec": {},
    "status": {"allocatable": {}, "conditions": [{"type": "Ready", "status": "True"}]},
}


def slice_of(node: str, *, count: int = 2, generation: int = 1, pool: str = "") -> Object:
    attributes = {"productName": {"string": "NVIDIA H100 80GB HBM3"}, "type": {"string": "gpu"}}
    memory = {"memory": {"value": "80Gi"}}
    devices = [{"name": f"gpu-{number}", "attributes": attributes, "capacity": memory} for number in range(count)]
    pooled = {"name": pool or node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pooled, "devices": devices}
    return {"metadata": {"name": f"{node}-{generation}"}, "spec": spec}


def claim(name: str, device: str, pool: str = "gpu-0", *pods: str) -> Object:
    result = {"driver": DRIVER, "pool": pool, "device": device, "request": "gpu"}
    return {
        "metadata": {"name": name, "namespace": "research"},
        "spec": {"devices": {"config": [{"opaque": {"parameters": {"secret": "x"}}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"name": pod} for pod in pods]},
    }


def shown(keeper: GpuMapKeeper) -> dict[str, list[tuple[str, list[str], str]]]:
    """By node: each device, the pods that hold it, and its state."""
    return {
        name: [(gpu.name, [holder.pod for holder in gpu.holders], gpu.state) for gpu in node.gpus]
        for name, node in keeper.current().nodes.items()
    }


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_claimed_devices_are_on_the_map_in_whatever_order_they_come(order: tuple[int, ...]) -> None:
    keeper = GpuMapKeeper()
    held = allocated_devices(claim("train", "gpu-1", "gpu-0", "train-0"))
    changes = [
        lambda: keeper.node("gpu-0", NODE),
        lambda: keeper.slice(("", "gpu-0-1"), slice_of("gpu-0")),
        lambda: keeper.claim(("research", "train"), held),
    ]
    for number in order:
        changes[number]()
        keeper.current()
    assert shown(keeper) == {"gpu-0": [("gpu-0", [], "free"), ("gpu-1", ["train-0"], "held")]}
    keeper.claim(("research", "train"), None)
    assert shown(keeper) == {"gpu-0": [("gpu-0", [], "free"), ("gpu-1", [], "free")]}
    keeper.slice(("", "gpu-0-1"), None)
    assert shown(keeper) == {}


def test_a_newer_generation_replaces_what_its_driver_is_about_to_delete() -> None:
    keeper = GpuMapKeeper()
    keeper.node("gpu-0", NODE)
    keeper.slice(("", "gpu-0-1"), slice_of("gpu-0"))
    keeper.slice(("", "gpu-0-2"), slice_of("gpu-0", count=3, generation=2))
    assert len(shown(keeper)["gpu-0"]) == 3
    keeper.slice(("", "gpu-0-1"), None)
    assert len(shown(keeper)["gpu-0"]) == 3


def test_of_a_claim_only_who_has_which_devices_is_kept() -> None:
    assert "secret" not in str(allocated_devices(claim("train", "gpu-1", "gpu-0", "train-0")))


SLICES = st.tuples(st.just("slice"), st.integers(0, 2), st.integers(0, 2), st.sampled_from(["gpu-0", "gpu-1"]))
CLAIMS = st.tuples(st.just("claim"), st.integers(0, 2), st.integers(0, 2), st.sampled_from(["gpu-0", "gpu-1"]))


@given(steps=st.lists(SLICES | CLAIMS, max_size=20))
def test_the_map_after_any_changes_is_that_of_what_is_left(steps: list[tuple[str, int, int, str]]) -> None:
    keeper, fresh = GpuMapKeeper(), GpuMapKeeper()
    left: dict[tuple[str, str, str], Any] = {}
    for each in (keeper, fresh):
        for name in ("gpu-0", "gpu-1"):
            each.node(name, {**NODE, "metadata": {"name": name, "labels": {}}})
    for kind, number, amount, place in steps:
        key = ("", f"s{number}") if kind == "slice" else ("research", f"c{number}")
        document = None
        if amount:
            document = slice_of(place, count=amount, pool=place) if kind == "slice" else claim("c", "gpu-0", place, "p")
        getattr(keeper, kind)(key, document)
        keeper.current()
        left[kind, *key] = document
    for (kind, *key), document in left.items():
        if document is not None:
            getattr(fresh, kind)(tuple(key), document)
    assert {name: sorted(gpus) for name, gpus in shown(keeper).items()} == {
        name: sorted(gpus) for name, gpus in shown(fresh).items()
    }
