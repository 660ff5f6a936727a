"""A situation of devices and claims on the real kube-scheduler: nodes, drivers and classes of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from controlplane.api import Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.objects.device_slices import API_VERSION, Device, DevicePool, Taint

Object = dict[str, Any]
Step = Callable[["Bench"], None]
Pool = Callable[[str, str], DevicePool]
"""Of a driver and a node."""
_EVERY_S = 0.05
CANNOT_ALLOCATE = "cannot allocate all claims"
"""Part of the scheduler's message where devices are lacking."""


@dataclass(frozen=True)
class Request:
    """Of a claim. ``where``: CEL, in which DRIVER stands for the driver's name; ``options`` is put into ``exactly``."""

    where: tuple[str, ...] = ()
    driver: int = 0
    name: str = "gpu"
    options: Mapping[str, Any] = field(default_factory=dict)

    def body(self, drivers: Sequence[str]) -> Object:
        driver = drivers[self.driver]
        selectors = [{"cel": {"expression": text.replace("DRIVER", driver)}} for text in self.where]
        return {"deviceClassName": driver, **({"selectors": selectors} if selectors else {}), **self.options}

    def named(self, name: str) -> "Request":
        return replace(self, name=name)

    def with_options(self, **options: Any) -> "Request":
        return replace(self, options={**self.options, **options})


@dataclass(frozen=True)
class AnyOf:
    """``firstAvailable``."""

    requests: tuple[Request, ...]
    name: str = "gpu"


@dataclass(frozen=True)
class Situation:
    """``pools``: by driver, of each node; ``nodes`` are named with ``N`` for the number in steps."""

    name: str
    pools: tuple[Pool, ...]
    steps: tuple[Step, ...]
    nodes: int = 1
    is_disruptive: bool = False
    """An invalid pool is in the messages about every pod of the cluster, so this one runs after the others."""


class Bench:
    """The objects of one situation. Nothing of it is shared with another, so all run at once."""

    def __init__(self, plane: ControlPlane, space: str, number: int, situation: Situation) -> None:
        self.api, self.space, self.prefix = plane.api, space, f"s{number:02}"
        self.drivers = [f"{self.prefix}-{at}.devices.test" for at in range(len(situation.pools))]
        self.nodes = [f"{self.prefix}-node-{at}" for at in range(situation.nodes)]
        self.situation = situation
        self.claims: list[str] = []
        self.pools: dict[tuple[str, str], DevicePool] = {}
        self._slices: list[str] = []

    def run(self) -> None:
        for node in self.nodes:
            self._make_node(node)
        for at, driver in enumerate(self.drivers):
            self.api.create(_class(driver))
            for node in self.nodes:
                self.publish(self.situation.pools[at](driver, node))
        for step in self.situation.steps:
            step(self)

    def close(self) -> None:
        for claim in self.claims:
            self.api.delete("v1", "Pod", claim, self.space, gracePeriodSeconds=0)
        for claim in self.claims:
            self.delete(claim)
        for name in self._slices:
            self.api.delete(API_VERSION, "ResourceSlice", name)
        for driver in self.drivers:
            self.api.delete(API_VERSION, "DeviceClass", driver)
        for node in self.nodes:
            self.api.delete("v1", "Node", node)

    def _make_node(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name, "devices.test/situation": self.prefix}
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}}
        self.api.patch("v1", "Node", name, status, subresource="status")
        # Kubernetes lifts the taint of a node that is new and not ready, and until then claims wait for another reason.
        self.api.wait("v1", "Node", name, lambda node: not node["spec"].get("taints"))

    def publish(self, pool: DevicePool) -> None:
        """In the place of what the driver published of the node before."""
        self.pools[pool.driver, pool.node] = pool
        for document in pool.slices():
            self.put(document)

    def put(self, document: Object) -> None:
        self.api.replace(document)
        self._slices.append(document["metadata"]["name"])

    def change(self, edit: Callable[[Device], Device], node: int = 0, driver: int = 0) -> None:
        """Devices of a pool, in a new generation."""
        pool = self.pools[self.drivers[driver], self.nodes[node]]
        devices = tuple(edit(device) for device in pool.devices)
        self.publish(replace(pool, devices=devices, generation=pool.generation + 1))

    def ask(self, requests: Sequence[Request | AnyOf], on: int | None = None, **extra: Any) -> str:
        """A claim, and a pod that uses it."""
        name = f"{self.prefix}-{len(self.claims)}"
        self.claims.append(name)
        self.api.create(self.claim(name, requests, **extra))
        self.pod(name, {"resourceClaimName": name}, on)
        return name

    def claim(self, name: str, requests: Sequence[Request | AnyOf], **extra: Any) -> Object:
        constraints = [
            {key: name.replace("DRIVER", self.drivers[0]) for key, name in each.items()}
            for each in extra.pop("constraints", ())
        ]
        devices = {"requests": [self._request(request) for request in requests], "constraints": constraints, **extra}
        return {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": self.space},
            "spec": {"devices": devices},
        }

    def _request(self, request: Request | AnyOf) -> Object:
        if isinstance(request, Request):
            return {"name": request.name, "exactly": request.body(self.drivers)}
        options = [{"name": each.name, **each.body(self.drivers)} for each in request.requests]
        return {"name": request.name, "firstAvailable": options}

    def pod(self, name: str, source: Object | None, on: int | None = None, limits: Object | None = None) -> None:
        selector = {"devices.test/situation": self.prefix}
        if on is not None:
            selector["kubernetes.io/hostname"] = self.nodes[on]
        container: Object = {"name": "main", "image": "team/main:1", "resources": {"limits": limits or {}}}
        spec: Object = {"nodeSelector": selector, "terminationGracePeriodSeconds": 0, "containers": [container]}
        if source is not None:
            container["resources"]["claims"] = [{"name": "devices"}]
            spec["resourceClaims"] = [{"name": "devices", **source}]
        metadata = {"name": name, "namespace": self.space}
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def delete(self, name: str) -> None:
        """A pod and its claim, so that its devices are free once it returns."""
        self.api.delete("v1", "Pod", name, self.space, gracePeriodSeconds=0)
        self.api.delete(API_VERSION, "ResourceClaim", name, self.space)
        wait_for(lambda: self.api.find(API_VERSION, "ResourceClaim", name, self.space) is None, every_s=_EVERY_S)

    def outcome(self, name: str) -> Object:
        """The pod once it has a node, or is refused."""
        return self.api.wait("v1", "Pod", name, _is_decided, self.space)

    def bound(self, name: str) -> Object:
        return self.api.wait("v1", "Pod", name, lambda pod: pod["spec"].get("nodeName"), self.space)

    def results(self, name: str) -> list[Object]:
        """What a claim was allocated, in the order of its requests."""
        claim = self.api.get(API_VERSION, "ResourceClaim", name, self.space)
        return list(claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []))


def _class(driver: str) -> Object:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [selector]},
    }


def _is_decided(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) or bool(reason_of(pod))


def reason_of(pod: Object) -> str:
    """Why a pod was not bound: the scheduler's message; empty where it did not say yet."""
    conditions = pod.get("status", {}).get("conditions") or []
    scheduled = next((item for item in conditions if item["type"] == "PodScheduled"), {})
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""


# Steps.


def gets(*requests: Request | AnyOf, devices: str, on: int | None = None, **extra: Any) -> Step:
    """A claim is allocated exactly these devices, in this order."""

    def step(bench: Bench) -> None:
        name = bench.ask(requests, on, **extra)
        # Not at the first attempt: the scheduler may hear of slices, or of what was freed, after it has seen the pod.
        bench.bound(name)
        assert [result["device"] for result in bench.results(name)] == devices.split()

    return step


def waits(*requests: Request | AnyOf, message: str = CANNOT_ALLOCATE, on: int | None = None, **extra: Any) -> Step:
    """A claim is allocated nothing, and its pod has no node."""

    def step(bench: Bench) -> None:
        name = bench.ask(requests, on, **extra)
        pod = bench.outcome(name)
        assert "nodeName" not in pod["spec"], bench.results(name)
        assert message in reason_of(pod), reason_of(pod)
        assert not bench.results(name)

    return step


def frees(number: int) -> Step:
    """The claim of that number and its pod are deleted."""
    return lambda bench: bench.delete(bench.claims[number])


def then_gets(number: int, devices: str) -> Step:
    """A claim that waited is allocated devices."""

    def step(bench: Bench) -> None:
        bench.bound(bench.claims[number])
        assert [result["device"] for result in bench.results(bench.claims[number])] == devices.split()

    return step


def refused(*requests: Request | AnyOf, message: str, **extra: Any) -> Step:
    """The API server does not accept a claim."""
    return lambda bench: _refused(bench, bench.claim(f"{bench.prefix}-bad", requests, **extra), message)


def slice_refused(change: Callable[[list[Object]], Object], message: str) -> Step:
    """The API server does not accept a slice, made from those of the first pool."""

    def step(bench: Bench) -> None:
        document = change(next(iter(bench.pools.values())).slices())
        document["metadata"]["name"] += "-bad"
        _refused(bench, document, message)

    return step


def _refused(bench: Bench, document: Object, message: str) -> None:
    with pytest.raises(Refused) as error:
        bench.api.create(document, dryRun="All")
    assert error.value.status in (403, 422)
    assert message in error.value.message


def taints(device: str, *given: Taint) -> Step:
    """The driver publishes a device with these taints."""
    return lambda bench: bench.change(lambda item: item.tainted(*given) if item.name == device else item)
