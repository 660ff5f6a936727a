"""Answers of the kubelet's PodResources API, encoded by Google's protobuf as the kubelet's own proto declares them."""

import contextlib

import pytest
from controlplane.kubelet.protocol import POD_RESOURCES
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.hardware.node_allocation import DeviceAllocation, gpus_of
from kopt.formats.pod_resources import PodResourcesError, allocations_of

GPU = "nvidia.com/gpu"


def encoded(*pods: dict[str, object]) -> bytes:
    return bytes(POD_RESOURCES["ListPodResourcesResponse"](pod_resources=pods).SerializeToString())


def pod(name: str, *containers: dict[str, object]) -> dict[str, object]:
    return {"name": name, "namespace": "research", "containers": containers}


def test_devices_of_a_pods_containers_stand_together() -> None:
    answer = encoded(
        pod("b", {"name": "one", "devices": [{"resource_name": GPU, "device_ids": ["GPU-2", "GPU-1"]}]}),
        pod(
            "a",
            {"name": "one", "devices": [{"resource_name": GPU, "device_ids": ["GPU-0"]}]},
            {"name": "two", "devices": [{"resource_name": GPU, "device_ids": ["GPU-3"]}]},
        ),
        pod("none", {"name": "one"}),
    )
    assert allocations_of(answer) == (
        DeviceAllocation("research", "a", GPU, ("GPU-0", "GPU-3")),
        DeviceAllocation("research", "b", GPU, ("GPU-1", "GPU-2")),
    )


def test_devices_of_claims_are_told_by_driver_pool_and_name() -> None:
    claimed = {
        "claim_name": "pair",
        "claim_namespace": "research",
        "claim_resources": [
            {"driver_name": "gpu.nvidia.com", "pool_name": "node-1", "device_name": f"gpu-{number}"}
            for number in (1, 0)
        ],
    }
    # Both containers share the claim.
    answer = encoded(pod("a", {"dynamic_resources": [claimed]}, {"dynamic_resources": [claimed]}))
    assert allocations_of(answer) == (
        DeviceAllocation("research", "a", "gpu.nvidia.com", ("node-1/gpu-0", "node-1/gpu-1"), "pair"),
    )


def test_fields_of_later_versions_are_passed_over() -> None:
    # A number, eight bytes, four bytes and text, under numbers that no version has.
    later = b"\xa0\x06\x96\x01" + b"\xa9\x06" + bytes(8) + b"\xb5\x06" + bytes(4) + b"\xba\x06\x03new"
    answer = encoded(pod("a", {"devices": [{"resource_name": GPU, "device_ids": ["GPU-0"]}]}))
    assert allocations_of(later + answer + later) == allocations_of(answer)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (encoded(pod("a", {"devices": [{"resource_name": GPU, "device_ids": ["GPU-0"]}]}))[:-1], "cut off"),
        (b"\x0a", "cut off"),
        (b"\xff" * 11, "more than ten bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x03\x0a\x01\xff" + b"\x0a\x08\x1a\x06\x12\x04\x12\x02\xff\xfe", "UTF-8"),
        (encoded(pod("a", {"devices": [{"resource_name": "x" * 300, "device_ids": ["y"]}]})), "characters"),
        (
            encoded(pod("a", {"dynamic_resources": [{"claim_namespace": "other", "claim_resources": [{}]}]})),
            "namespace",
        ),
    ],
)
def test_what_is_no_answer_is_refused(broken: bytes, words: str) -> None:
    with pytest.raises(PodResourcesError, match=words):
        allocations_of(broken)


@given(st.binary(max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    with contextlib.suppress(PodResourcesError):
        assert all(isinstance(one, DeviceAllocation) for one in allocations_of(noise))


@pytest.mark.parametrize(
    ("devices", "gpus", "whole"),
    [
        (("GPU-b", "GPU-a"), (0, 1), True),
        (("GPU-a::0", "GPU-a::3"), (0,), False),
        (("GPU-a::0", "GPU-b::3"), (0, 1), False),
        (("MIG-x",), (1,), False),
        (("GPU-c",), None, False),
    ],
)
def test_devices_are_gpus_or_parts_of_them(devices: tuple[str, ...], gpus: tuple[int, ...] | None, whole: bool) -> None:
    known = {"GPU-a": 0, "GPU-b": 1, "MIG-x": 1}
    assert gpus_of(devices, known) == gpus
    assert DeviceAllocation("a", "b", GPU, devices, gpus=gpus_of(devices, known)).whole is whole
