"""The answer of the kubelet's PodResources API, ``v1.PodResourcesLister/List``.

Protocol buffers as ``k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`` (1.36) declares them; what is not needed here,
and what later versions add, is passed over. https://protobuf.dev/programming-guides/encoding/
"""

from collections import defaultdict
from collections.abc import Iterator

from kopt.core.hardware.node_allocation import DeviceAllocation

LIST_METHOD = "/v1.PodResourcesLister/List"
ALLOCATABLE_METHOD = "/v1.PodResourcesLister/GetAllocatableResources"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_NAME = 256
_MOST_DEVICES = 100_000


class PodResourcesError(ValueError):
    """Bytes that are no answer of this method."""


def allocations_of(answer: bytes) -> tuple[DeviceAllocation, ...]:
    """Devices by pod and resource, those of its containers together. Raises PodResourcesError."""
    devices_of: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    total = 0
    for pod in _messages(answer, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _messages(pod, 3):
            for resource, claim, device in _devices(container, namespace):
                devices_of[namespace, name, resource, claim].add(device)
                total += 1
                if total > _MOST_DEVICES:
                    raise PodResourcesError(f"more than {_MOST_DEVICES} devices on one node")
    return tuple(
        DeviceAllocation(namespace, name, resource, tuple(sorted(devices)), claim)
        for (namespace, name, resource, claim), devices in sorted(devices_of.items())
    )


def allocatable_of(answer: bytes) -> dict[str, tuple[str, ...]]:
    """Devices by resource that device plugins offer, given to pods or not. Raises PodResourcesError."""
    devices_of: dict[str, set[str]] = defaultdict(set)
    for total, (resource, device) in enumerate(_of_plugins(answer, 1), 1):
        if total > _MOST_DEVICES:
            raise PodResourcesError(f"more than {_MOST_DEVICES} devices on one node")
        devices_of[resource].add(device)
    return {resource: tuple(sorted(devices)) for resource, devices in sorted(devices_of.items())}


def _of_plugins(message: bytes, number: int) -> Iterator[tuple[str, str]]:
    """Resource and device of each ``ContainerDevices`` in that field."""
    for devices in _messages(message, number):
        for device in _messages(devices, 2):
            yield _text(devices, 1), _decoded(device)


def _devices(container: bytes, namespace: str) -> Iterator[tuple[str, str, str]]:
    """Resource, claim and device: of device plugins, then of dynamic resource allocation."""
    for resource, identifier in _of_plugins(container, 2):
        yield resource, "", identifier
    for claimed in _messages(container, 5):
        claim = _text(claimed, 2)
        if _text(claimed, 3) not in ("", namespace):
            raise PodResourcesError(f"claim {claim!r} of another namespace than its pod's")
        for device in _messages(claimed, 4):
            yield _text(device, 2), claim, f"{_text(device, 3)}/{_text(device, 4)}"


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """The values of a field that has a length."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, value = key & 7, b""
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            length, at = _varint(message, at)
            value = message[at : at + length]
            at += length
        else:
            raise PodResourcesError(f"a field of the unknown wire type {kind}")
        if at > len(message):
            raise PodResourcesError("the answer is cut off")
        if key >> 3 == number and kind == _BYTES:
            yield value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise PodResourcesError("the answer is cut off")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if not message[at - 1] & 0x80:
            return value, at
    raise PodResourcesError("a number of more than ten bytes")


def _text(message: bytes, number: int) -> str:
    """A string; the last of several counts, and none is empty."""
    values = list(_messages(message, number))
    return _decoded(values[-1]) if values else ""


def _decoded(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise PodResourcesError("a name that is no UTF-8") from error
    if len(text) > _LONGEST_NAME:
        raise PodResourcesError(f"a name of more than {_LONGEST_NAME} characters")
    return text
