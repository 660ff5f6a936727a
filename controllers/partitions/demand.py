"""Instances that pods and claims request, and those that drivers which cut on demand have given."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, text
from kopt.cluster.workloads.requests.devices import (
    ObservedClaim,
    PublishedSlice,
    device_request,
    only_request,
    read_claim,
)

MIG = "mig"


@dataclass(frozen=True)
class PartitionClaim:
    """A claim. ``request``: what it asks for, where that is one device; ``pod``: the uid of whom it was made for."""

    observed: ObservedClaim
    request: Object | None

    @property
    def pod(self) -> str:
        return self.observed.made_for.partition("/")[0]

    @property
    def is_allocated(self) -> bool:
        return bool(self.observed.allocated)


def read_partition_claim(claim: Object) -> PartitionClaim:
    request = only_request(claim)
    if request is None:
        # One that the webhook gave a choice: what was written is the last alternative.
        alternatives = at(claim, "spec", "devices", "requests", 0, "firstAvailable")
        last = alternatives[-1] if isinstance(alternatives, list) and alternatives else None
        request = {"name": text(last, "name"), "exactly": last} if isinstance(last, dict) else None
    return PartitionClaim(read_claim(claim), request)


def profile_of(claim: PartitionClaim, classes: Mapping[str, Object]) -> tuple[str, str]:
    """(driver, profile) of the instance that a claim requests; empty where it requests something else."""
    if claim.request is None:
        return "", ""
    device_class = classes.get(text(claim.request, "exactly", "deviceClassName"))
    request = None if device_class is None else device_request(device_class, claim.request)
    if request is None or request.count != 1 or request.attributes.get("type", MIG) != MIG or not request.profile:
        return "", ""
    return request.driver, request.profile


def dynamic_drivers(slices: Iterable[PublishedSlice]) -> dict[str, str]:
    """The driver of each node whose GPUs are cut on demand: it publishes a GPU, and instances of the same one."""
    whole: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    drivers: dict[str, str] = {}
    for part in slices:
        for device in part.devices:
            if device.gpu:
                kept = parts if device.profile else whole
                kept.setdefault(part.node, set()).add(device.gpu)
                drivers[part.node] = part.driver
    return {node: drivers[node] for node, gpus in whole.items() if gpus & parts.get(node, set())}


def dynamic_instances(slices: Sequence[PublishedSlice], claims: Iterable[PartitionClaim]) -> dict[str, Counter[str]]:
    """Instances by profile that claims were allocated, by node."""
    devices = {(part.driver, part.pool, device.name): (part.node, device) for part in slices for device in part.devices}
    result: dict[str, Counter[str]] = {}
    for claim in claims:
        for name in claim.observed.allocated:
            node, device = devices.get(name, ("", None))
            if device is not None and device.profile:
                result.setdefault(node, Counter())[device.profile] += 1
    return result
