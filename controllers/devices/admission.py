"""The webhook's part of devices: a claim that Kubernetes makes from a template is given the instance, or the whole GPUs
of one node, that the books select, as an alternative before what it was written with.

A ResourceClaim cannot be changed once it exists, and kube-scheduler allocates the first alternative that fits: the
choice is a preference, and a claim without one is as good as before.
"""

import asyncio
import json
from typing import Any

from kopt.cluster.admission.review import Review
from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import MIG_STRATEGIES, NODE_TOPOLOGIES, NODES, PODS, Object
from kopt.cluster.objects.custom.mig_strategy import MigStrategy, read_strategy
from kopt.cluster.objects.fields import at, items, mapping
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.requests.devices import (
    CHOICE_ANNOTATION,
    DeviceRequest,
    ObservedClaim,
    PublishedSlice,
    device_request,
    made_for,
    only_request,
    owner_pod,
    read_claim,
    read_slice,
    with_choice,
)
from kopt.cluster.workloads.requests.external import CLAIMS, DEVICE_CLASSES, RESOURCE_SLICES
from kopt.controllers.devices.books import AnySelection, Books
from kopt.controllers.devices.open_nodes import Labels, OpenNodes
from kopt.controllers.devices.sets import LinkedGpus, linked_gpus
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.switches import Owner

_NODES_AT_ONCE = 20
"""Of which the GPUs are read between two turns of the loop: some milliseconds."""


class DevicesAtAdmission:
    """Answers from memory; ``run`` keeps it up to date until cancelled."""

    def __init__(self, kube: Kube, isolation: Isolation | None = None, gate: Gate = OPEN) -> None:
        self._kube, self._gate = kube, gate
        self._slices: Informer[PublishedSlice] = Informer(kube, RESOURCE_SLICES, keep=read_slice)
        self._claims: Informer[ObservedClaim] = Informer(kube, CLAIMS, keep=read_claim)
        self._classes: Informer[Object] = Informer(kube, DEVICE_CLASSES)
        self._nodes: Informer[Labels] = Informer(kube, NODES, keep=_open_node)
        self._strategies: Informer[MigStrategy] = Informer(kube, MIG_STRATEGIES, keep=read_strategy)
        self._linked: Informer[LinkedGpus] = Informer(kube, NODE_TOPOLOGIES, keep=linked_gpus)
        self._open = OpenNodes(self._nodes.objects)
        self._settled = False
        self.books = Books(strategy_of=self._strategy_of, linked=self._linked.objects)
        self._slices.subscribe(lambda change: self.books.put_slice(change.key, change.new))
        self._claims.subscribe(self._claim_changed)
        self._nodes.subscribe(self._node_changed)
        self._strategies.subscribe(self._strategy_changed)
        self._linked.subscribe(lambda change: self.books.touch(change.key[1]))
        for informer in self._informers:
            if isolation is not None:
                informer.isolation = isolation

    @property
    def _needed(self) -> tuple[Informer[Any], ...]:
        """Without links the order is that of the slice: they are not waited for, as they may be forbidden to us."""
        return self._slices, self._claims, self._classes, self._nodes, self._strategies

    @property
    def _informers(self) -> tuple[Informer[Any], ...]:
        return *self._needed, self._linked

    async def run(self) -> None:
        await asyncio.gather(self._settle(), *(informer.run() for informer in self._informers))

    async def _settle(self) -> None:
        """All nodes are new at first: other reviews are answered between some and the next, and no claim is given a
        choice before all are read."""
        for informer in self._needed:
            await informer.synced.wait()
        while not self.books.settle(_NODES_AT_ONCE):
            await asyncio.sleep(0)
        self._settled = True

    def is_wanted(self, claim: Object) -> bool:
        """Whether a claim may be given a choice at all: without it nothing has to be read."""
        fresh = CHOICE_ANNOTATION not in mapping(claim, "metadata", "annotations")
        return self._settled and fresh and bool(owner_pod(claim)[0]) and self._request(claim) is not None

    def mode(self, owner: Owner, mode: Mode) -> Mode:
        """As the switch has it for what an owner has."""
        return self._gate.mode("devices", owner, mode)

    async def pod(self, review: Review) -> Object | None:
        """The pod that a claim is made for; None where it cannot be read."""
        name, uid = owner_pod(review.object)
        try:
            pod = await self._kube.get(PODS, name, review.namespace)
        except ApiError:
            return None
        return pod if pod["metadata"]["uid"] == uid else None

    def select(self, patch: JsonPatch, claim: Object, pod: Object, mode: Mode, *, dry_run: bool) -> Reason | None:
        """Write the choice into a claim that is being created, in mode annotate as an annotation alone; the reason
        that it then has."""
        request = self._request(claim)
        if request is None or mode is Mode.OBSERVE:
            return None
        key = made_for(claim)
        selection = self.books.select(request, key, self._open.of(dict(mapping(pod, "spec"))))
        if selection is None:
            return Reason(
                "DEVICE_NO_ROOM", "No node has room for what it asks for, so that the claim stays as written."
            )
        if dry_run or mode is not Mode.ENFORCE:
            self.books.forget(key)
        self._write(patch, claim, selection, mode)
        document = selection.document()
        numbers = {name: ", ".join(each) if isinstance(each, list) else each for name, each in document.items()}
        return Reason("DEVICE_SELECTED", f"Selected for it: {selection}.", numbers)

    def _write(self, patch: JsonPatch, claim: Object, selection: AnySelection, mode: Mode) -> None:
        patch.put(("metadata", "annotations", CHOICE_ANNOTATION), json.dumps(selection.document()))
        if mode is Mode.ENFORCE:
            request = only_request(claim)
            assert request is not None, "a claim with a selection has one request"
            patch.put(("spec", "devices", "requests"), [with_choice(request, selection.selector)])

    def _request(self, claim: Object) -> DeviceRequest | None:
        request = only_request(claim)
        if request is None:
            return None
        device_class = self._classes.objects.get(("", str(at(request, "exactly", "deviceClassName"))))
        asked = None if device_class is None else device_request(device_class, request)
        return asked if asked is not None and (asked.count == 1 or asked.is_whole_gpu) else None

    def _strategy_of(self, node: str) -> MigStrategy | None:
        """Of several the first by name."""
        labels, _ = self._nodes.objects.get(("", node), ({}, []))
        matches = [strategy for strategy in self._strategies.objects.values() if strategy.selects(labels)]
        return min(matches, key=lambda strategy: strategy.name, default=None)

    def _claim_changed(self, change: Change[ObservedClaim]) -> None:
        self.books.put_claim(change.key, change.new)
        if change.new is not None and change.old is None:
            self.books.observe(change.new)

    def _strategy_changed(self, change: Change[MigStrategy]) -> None:
        # Its status changes neither.
        if change.old != change.new:
            self.books.touch()

    def _node_changed(self, change: Change[Labels]) -> None:
        # Heartbeats change neither.
        if change.old != change.new:
            self._open.changed(change.key[1])
            self.books.touch(change.key[1])


def _open_node(node: Object) -> Labels | None:
    """None for one that is cordoned or not ready."""
    if at(node, "spec", "unschedulable") is True:
        return None
    ready = {item.get("status") for _, item in items(node, "status", "conditions") if item.get("type") == "Ready"}
    taints = [item for _, item in items(node, "spec", "taints")]
    return (dict(mapping(node, "metadata", "labels")), taints) if ready <= {"True"} else None
