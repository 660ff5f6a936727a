"""GPUs and MIG instances in dynamic resource allocation: what drivers publish, and what claims request and have.

Devices are read as NVIDIA's driver publishes them: attributes ``type``, ``profile``, ``parentUUID`` or ``uuid`` and
``productName``, and a capacity ``memorySliceN`` for each memory slot of an instance.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, count, items, mapping, text
from kopt.core.workload.gpu_share import MOST_GPUS

CHOICE_ANNOTATION = "kaiwo.ai/device-choice"
"""On a generated claim: the GPU and the memory slot that the webhook selected for it, as JSON."""
_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
PREFERRED, AS_WRITTEN = "preferred", "as-written"
"""Names of the two alternatives of a request that was given a choice."""
_SLOT = re.compile(r"memorySlice(\d{1,2})")
_DRIVER = re.compile(r"""device\.driver\s*==\s*(["'])(?P<value>[^"']+)\1""")
_ATTRIBUTE = re.compile(
    r"""device\.attributes\[(["'])(?P<domain>[^"']+)\1\]\.(?P<name>\w+)\s*==\s*(["'])(?P<value>[^"']*)\4"""
)
_CLOSING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """``gpu``: the UUID of the GPU that it is, or is cut from. ``start``: its first memory slot; 0 for a whole GPU.
    ``mode``: how an AMD GPU is divided for it, and ``parent`` which of the node's GPUs that is. ``is_shared``: several
    claims may have parts of it."""

    name: str
    gpu: str
    model: str
    kind: str
    profile: str
    start: int
    is_closed: bool
    mode: str = ""
    parent: str = ""
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A ResourceSlice. ``parts``: how many slices its pool has in this generation."""

    driver: str
    pool: str
    node: str
    generation: int
    parts: int
    devices: tuple[PublishedDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """``count`` devices of a driver with these values of string attributes."""

    driver: str
    attributes: Mapping[str, str]
    count: int = 1

    @property
    def profile(self) -> str:
        return self.attributes.get("profile", "")

    @property
    def is_whole_gpu(self) -> bool:
        return self.attributes.get("type") == "gpu"

    def matches(self, model: str) -> bool:
        """Whether a GPU of this model may be meant."""
        return self.attributes.get("productName", model) == model


@dataclass(frozen=True, slots=True)
class ObservedClaim:
    """``allocated``: driver, pool and name of each device. ``choice``: of ours, empty for none."""

    made_for: str
    allocated: tuple[tuple[str, str, str], ...]
    choice: str


def read_slice(document: Object) -> PublishedSlice | None:
    """None for slices that belong to no one node."""
    spec = mapping(document, "spec")
    node, pool = text(spec, "nodeName"), mapping(spec, "pool")
    if not node:
        return None
    devices = tuple(_device(item) for _, item in items(spec, "devices"))
    return PublishedSlice(
        text(spec, "driver"),
        text(pool, "name"),
        node,
        count(pool, "generation", default=0),
        count(pool, "resourceSliceCount"),
        devices,
    )


def _device(item: Object) -> PublishedDevice:
    slots = [int(match[1]) for name in mapping(item, "capacity") if (match := _SLOT.fullmatch(name))]
    return PublishedDevice(
        text(item, "name"),
        _string(item, "parentUUID") or _string(item, "uuid"),
        _string(item, "productName"),
        _string(item, "type"),
        _string(item, "profile"),
        min(slots, default=0),
        any(text(taint, "effect") in _CLOSING for _, taint in items(item, "taints")),
        _string(item, "partitionProfile") or _string(item, "mode"),
        _string(item, "pciAddr") or str(at(item, "attributes", "index", "int") or 0),
        at(item, "allowMultipleAllocations") is True,
    )


def _string(item: Object, name: str) -> str:
    return text(mapping(item, "attributes", name), "string")


def read_claim(document: Object) -> ObservedClaim:
    """Of any shape; what cannot be understood is empty."""
    metadata = mapping(document, "metadata")
    results = [result for _, result in items(document, "status", "allocation", "devices", "results")]
    return ObservedClaim(
        made_for(document),
        tuple(
            (text(result, "driver"), text(result, "pool"), text(result, "device"))
            for result in results
            if not at(result, "adminAccess")
        ),
        text(metadata, "annotations", CHOICE_ANNOTATION),
    )


def owner_pod(claim: Object) -> tuple[str, str]:
    """Name and UID of the pod that a claim was generated for; empty where it was not."""
    for _, owner in items(claim, "metadata", "ownerReferences"):
        if text(owner, "kind") == "Pod" and at(owner, "controller") is True:
            return text(owner, "name"), text(owner, "uid")
    return "", ""


def made_for(claim: Object) -> str:
    """What tells a generated claim from every other before it has a name: its pod, and which of its claims it is."""
    uid = owner_pod(claim)[1]
    return f"{uid}/{text(claim, 'metadata', 'annotations', _POD_CLAIM)}" if uid else ""


def only_request(claim: Object) -> Object | None:
    """The request of a claim that has one, for so many devices of its own."""
    requests = [item for _, item in items(claim, "spec", "devices", "requests")]
    if len(requests) != 1 or at(claim, "spec", "devices", "constraints"):
        return None
    exactly = mapping(requests[0], "exactly")
    plain = text(exactly, "allocationMode") in ("", "ExactCount")
    if (
        not plain
        or not 1 <= count(exactly, "count") <= MOST_GPUS
        or at(exactly, "adminAccess") is True
        or at(exactly, "capacity")
        or not text(exactly, "deviceClassName")
    ):
        return None
    return dict(requests[0])


def device_request(device_class: Object, request: Object) -> DeviceRequest | None:
    """What a request means, where its class and its selectors compare a driver and string attributes and nothing else;
    None where they say more, so that it is not known which devices they match."""
    driver, attributes = "", dict[str, str]()
    for expression in (*_selectors(device_class, "spec"), *_selectors(request, "exactly")):
        for term in expression.split("&&"):
            term = term.strip()
            if match := _DRIVER.fullmatch(term):
                if driver not in ("", match["value"]):
                    return None
                driver = match["value"]
            elif match := _ATTRIBUTE.fullmatch(term):
                if attributes.setdefault(match["name"], match["value"]) != match["value"]:
                    return None
            else:
                return None
    return DeviceRequest(driver, attributes, count(request, "exactly", "count")) if driver else None


def _selectors(holder: Object, *path: str) -> tuple[str, ...]:
    return tuple(text(item, "cel", "expression") for _, item in items(holder, *path, "selectors"))


def set_selector(driver: str, gpus: Sequence[str]) -> str:
    """CEL that these GPUs alone meet of those that a request for whole ones matches."""
    attributes = f'device.attributes["{driver}"]'
    return f'"uuid" in {attributes} && {attributes}.uuid in [{", ".join(json.dumps(gpu) for gpu in gpus)}]'


def choice_selector(driver: str, gpu: str, start: int) -> str:
    """CEL that only one device meets of those that a request for a profile matches."""
    attributes = f'device.attributes["{driver}"]'
    return (
        f'"parentUUID" in {attributes} && {attributes}.parentUUID == {json.dumps(gpu)} && '
        f'"memorySlice{start}" in device.capacity["{driver}"]'
    )


def with_choice(request: Object, selector: str) -> Object:
    """The same request with the devices that the selector names before all others: kube-scheduler allocates them where
    it can, and else what was written."""
    exactly = dict(mapping(request, "exactly"))
    preferred = {
        **exactly,
        "name": PREFERRED,
        "selectors": [*exactly.get("selectors", []), {"cel": {"expression": selector}}],
    }
    return {"name": request["name"], "firstAvailable": [preferred, {**exactly, "name": AS_WRITTEN}]}
