"""ResourceClaims of dynamic resource allocation that keep pods from starting."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.objects.fields import at, count, items, text
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.core.scheduling.diagnosis import Binding, Cause


def claim_causes(pods: Sequence[Object], books: ClusterBooks) -> Iterator[Cause]:
    """Claims that do not exist, and those that have no devices yet."""
    if "resourceclaims" in books.documents.unread:
        return
    claims = {key_of(claim): claim for claim in books.documents.claims}
    for key in dict.fromkeys(key for pod in pods for key in _named(pod)):
        claim = claims.get(key)
        if claim is None:
            message = f"It names the resource claim {key[1]}, which does not exist."
            yield Cause(Binding.CLAIM_MISSING, message, about=key[1])
        elif not isinstance(at(claim, "status", "allocation"), dict):
            yield _unallocated(claim, books)


def _named(pod: Object) -> Iterator[Key]:
    """The claims of a pod; what a template has not made yet has no name."""
    namespace = text(pod, "metadata", "namespace")
    made = {
        text(item, "name"): text(item, "resourceClaimName") for _, item in items(pod, "status", "resourceClaimStatuses")
    }
    for _, item in items(pod, "spec", "resourceClaims"):
        name = text(item, "resourceClaimName") or made.get(text(item, "name"), "")
        if name:
            yield namespace, name


def _unallocated(claim: Object, books: ClusterBooks) -> Cause:
    name, wanted = text(claim, "metadata", "name"), Counter[str]()
    for _, request in items(claim, "spec", "devices", "requests"):
        exact: Any = at(request, "exactly") or request
        wanted[text(exact, "deviceClassName")] += count(exact, "count")
    label = ", ".join(f"{number} of class {device}" for device, number in wanted.items() if device) or "devices"
    free = _free_devices(books, wanted)
    number = sum(wanted.values())
    has = "" if free is None else f"; {free} {'is' if free == 1 else 'are'} free in the cluster"
    message = f"The resource claim {name} has no devices yet: it requests {label}{has}."
    return Cause(Binding.CLAIM_UNALLOCATED, message, number or None, free, "devices", name)


def _free_devices(books: ClusterBooks, wanted: Counter[str]) -> int | None:
    """Devices of the classes' driver that no claim has; None where no slices can be read, or the class is not named
    after its driver."""
    drivers = {name for name in wanted if name}
    devices = {
        (text(item, "spec", "driver"), text(item, "spec", "pool", "name"), text(device, "name"))
        for item in books.documents.slices
        if text(item, "spec", "driver") in drivers
        for _, device in items(item, "spec", "devices")
    }
    if not devices:
        return None
    used = {
        (text(result, "driver"), text(result, "pool"), text(result, "device"))
        for claim in books.documents.claims
        for _, result in items(claim, "status", "allocation", "devices", "results")
    }
    return len(devices - used)
