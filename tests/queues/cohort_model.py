"""Queues of one cohort as Kueue 0.15 runs them, with the API's objects, and the product's controller beside them: its
decisions and its writes, on a clock that goes from event to event.

Each cycle takes the first workload of every queue, those first that borrow least for their weight, or without fair
sharing those that do not borrow and then the oldest; what does not fit is
put aside until something is freed, and keeps for its cycle what its queue's quota has left (kueue v0.15,
pkg/scheduler/scheduler.go). Queues are conservative, so that Kueue itself evicts nobody.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.objects.custom.kaiwo_queue import pool_of, queue_of
from kopt.controllers.queues.evicting import Evictions
from kopt.controllers.queues.reclaiming import reclaims_due
from kopt.controllers.queues.status import status_of
from kopt.core.scheduling.queue_tree import GPU, Engine
from kopt.core.times import stamp
from kopt.policies.queues import QueueTree, Settings, compile_tree
from kopt.policies.queues.shares import divisions
from kopt.policies.shares import share_rows

Object = dict[str, Any]
SPACE, GPU_RESOURCE, EPOCH_S = "team", "nvidia.com/gpu", 1_700_000_000
AGAIN_S, GATHER_S = 60.0, 0.2
_FOREVER = float("inf")


@dataclass
class Work:
    """A workload. ``fits_nowhere``: its pods ask for a node that no flavour has."""

    name: str
    queue: str
    gpus: int
    came_s: float
    runs_s: float
    fits_nowhere: bool = False
    reserved_s: float | None = None
    evicted_s: float | None = None
    gone_s: float = _FOREVER
    """Once it was evicted: when its quota is free."""
    aside: bool = False
    active: bool = True
    metadata: Object = field(default_factory=lambda: {"labels": {}, "annotations": {}})
    evictions: list[float] = field(default_factory=list)

    @property
    def waits_since_s(self) -> float:
        return max(self.came_s, self.evicted_s or 0.0)

    @property
    def waits(self) -> bool:
        return self.reserved_s is None and self.active

    @property
    def ends_s(self) -> float:
        runs = self.reserved_s is not None and self.evicted_s is None
        return (self.reserved_s or 0.0) + self.runs_s if runs else _FOREVER

    @property
    def document(self) -> Object:
        conditions = []
        if self.reserved_s is not None:
            conditions.append(_condition("QuotaReserved", self.reserved_s))
        if self.evicted_s is not None:
            conditions.append(_condition("Evicted", self.evicted_s))
        status: Object = {"conditions": conditions}
        if self.reserved_s is not None:
            usage = {"flavors": {GPU_RESOURCE: "default"}, "resourceUsage": {GPU_RESOURCE: str(self.gpus)}}
            pods = [{"name": "main", "count": 1, **usage}]
            status["admission"] = {"clusterQueue": self.queue, "podSetAssignments": pods}
        if self.evictions or self.evicted_s is not None:
            status["schedulingStats"] = {"evictions": [{"reason": "Deactivated", "count": 1}]}
        container = {"name": "main", "resources": {"requests": {GPU_RESOURCE: str(self.gpus)}}}
        selector = {"nodeSelector": {"gpu": "none-such"}} if self.fits_nowhere else {}
        pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container], **selector}}}
        metadata = {"name": self.name, "namespace": SPACE, "uid": self.name, "resourceVersion": "1"}
        return {
            "metadata": {**metadata, "creationTimestamp": _stamp(self.came_s), **self.metadata},
            "spec": {"queueName": self.queue, "active": self.active, "podSets": [pod_set]},
            "status": status,
        }


class Cohort:
    """``quotas`` and ``capacity`` in GPUs; workloads that are evicted keep their quota for ``ends_s``.
    What the capacity has above the quotas belongs to the cohort. ``fair``: Kueue's Configuration has ``fairSharing``;
    ``strict``: nothing passes what is first in a queue."""

    def __init__(
        self,
        quotas: Mapping[str, int],
        capacity: int,
        fairness: Object,
        ends_s: float,
        *,
        fair: bool = True,
        strict: bool = False,
    ) -> None:
        self.fair, self.strict = fair, strict
        self.pods_listed = 0
        self.quotas, self.capacity, self.ends_s = dict(quotas), capacity, ends_s
        self.now_s, self.works = 0.0, dict[str, Work]()
        root = {"resources": {"gpu": {"quota": capacity}}}
        leaf = {
            "parentQueue": "all",
            "namespaces": [SPACE],
            "fairness": {"reclaimStrategy": "conservative", **fairness},
            **({"kueue": {"queueingStrategy": "StrictFIFO"}} if strict else {}),
        }
        specs = {"all": root} | {
            name: {**leaf, "resources": {"gpu": {"quota": quota, "overQuotaWeight": quota}}}
            for name, quota in self.quotas.items()
        }
        self.documents = {name: {"metadata": {"name": name}, "spec": spec} for name, spec in specs.items()}
        pool = {"metadata": {"name": "default"}, "spec": {"nodeLabels": {"gpu": "there-is"}}}
        self.tree = QueueTree.of(map(queue_of, self.documents.values()), [pool_of(pool)])
        self._compiled = compile_tree(self.tree, Engine.KUEUE, Settings(delays_reclaim=True)).objects
        self.evictions = Evictions(self._kube, self, lambda *event: None, self.clock)  # type: ignore[arg-type]

    def clock(self) -> float:
        return EPOCH_S + self.now_s

    def used(self, queue: str) -> int:
        return sum(work.gpus for work in self.works.values() if work.queue == queue and work.reserved_s is not None)

    @property
    def largest_error(self) -> float:
        """Of all queues, from what they ideally have of what runs and waits, in GPUs."""
        asked = Counter[str]()
        for work in self.works.values():
            asked[work.queue] += 1000 * work.gpus
        division = divisions(self.tree, {name: {GPU: milli} for name, milli in asked.items()})[0]
        rows = {row.queue.name: row.ideal.get(GPU, 0) for row in share_rows(division.queues, {}, division.capacity)}
        return max(abs(rows.get(name, 0) / 1000 - self.used(name)) for name in self.quotas)

    @property
    def free(self) -> int:
        return self.capacity - sum(map(self.used, self.quotas))

    @property
    def next_s(self) -> float:
        return min((min(work.ends_s, work.gone_s) for work in self.works.values()), default=_FOREVER)

    def submit(self, work: Work) -> None:
        self.works[work.name] = work
        self._schedule()

    def advance(self, at_s: float) -> None:
        """Up to the next event at most."""
        self.now_s, freed = at_s, False
        for work in list(self.works.values()):
            if work.gone_s <= at_s:
                work.reserved_s, work.gone_s, freed = None, _FOREVER, True
                work.evictions.append(at_s)
            elif work.ends_s <= at_s:
                freed = self.works.pop(work.name) is work
        if freed:
            self._schedule(afresh=True)

    async def controlled(self) -> float:
        """One pass of the controller; in how many seconds the next one is due."""
        held = await self.evictions.give_back(acts=True)
        attempts = self.evictions.attempts
        reclaiming = await reclaims_due(self._kube, self.tree, self.documents, self.clock(), attempts=attempts)
        changed = False
        for name, document in self.documents.items():
            decision = reclaiming.decisions.get(name)
            status = status_of(document, Engine.KUEUE, (), (True, "AsDeclared", ""), self.clock(), decision)
            changed |= status != document.get("status")
            document["status"] = status
        await self.evictions.carry_out(reclaiming)
        self._schedule(afresh=True)
        spans = [AGAIN_S, *([2.0] if held else []), *([GATHER_S] if changed else [])]
        return min([*spans, *(max(1.0, each.again_s) for each in reclaiming.decisions.values())])

    def reason(self, queue: str) -> str:
        """What the queue's status says of what it waits for."""
        conditions = (self.documents[queue].get("status") or {}).get("conditions") or ()
        return next((item["reason"] for item in conditions if item["type"] == "Reclaiming"), "")

    async def patch(self, resource: Any, document: Object, changes: Object) -> Object:
        """The writes of the controller, all of them on Workloads."""
        work = self.works[document["metadata"]["name"]]
        for key, values in changes["metadata"].items():
            if key in work.metadata:
                merged = work.metadata[key] | values
                work.metadata[key] = {name: value for name, value in merged.items() if value is not None}
        work.active = changes["spec"]["active"]
        if not work.active and work.reserved_s is not None and work.evicted_s is None:
            work.runs_s -= self.now_s - work.reserved_s
            work.evicted_s, work.gone_s = self.now_s, self.now_s + self.ends_s
        return document

    @property
    def _kube(self) -> Kube:
        return SimpleNamespace(list=self._list, get=self._get)  # type: ignore[return-value]

    async def _get(self, resource: Any, name: str, space: str = "") -> Object:
        if name not in self.works:
            raise NotFound(404, "NotFound", name)
        return self.works[name].document

    async def _list(self, resource: Any, label_selector: str = "") -> Any:
        if resource.kind == "Workload":
            key, _, value = label_selector.partition("=")
            works = [work for work in self.works.values() if not key or work.metadata["labels"].get(key) == value]
            return SimpleNamespace(items=[work.document for work in works])
        self.pods_listed += resource.kind == "Pod"
        own = [item for item in self._compiled if item["kind"] == resource.kind]
        if resource.kind == "ClusterQueue":
            own = [{**item, "status": self._status(item["metadata"]["name"])} for item in own]
        return SimpleNamespace(items=own)

    def _status(self, queue: str) -> Object:
        used = self.used(queue)
        row = {"name": GPU_RESOURCE, "total": str(used), "borrowed": str(max(0, used - self.quotas[queue]))}
        return {
            **({"fairSharing": {"weightedShare": 0}} if self.fair else {}),
            "conditions": [_condition("Active", 0.0)],
            "pendingWorkloads": sum(work.queue == queue and work.waits for work in self.works.values()),
            "flavorsReservation": [{"name": "default", "resources": [row]}],
        }

    def _schedule(self, *, afresh: bool = False) -> None:
        for work in self.works.values():
            work.aside = work.aside and not afresh
        while heads := self._heads():
            free = self.free
            for work in sorted(heads, key=lambda work: (self._rank(work), work.waits_since_s, work.name)):
                if work.gpus <= free and not work.fits_nowhere:
                    work.reserved_s, work.evicted_s = self.now_s, None
                    free -= work.gpus
                elif work.fits_nowhere or work.gpus > self.free:
                    work.aside = True
                    free -= 0 if work.fits_nowhere else self._kept(work, free)

    def _heads(self) -> Sequence[Work]:
        ready = [work for work in self.works.values() if work.waits and (self.strict or not work.aside)]
        first = dict[str, Work]()
        for work in sorted(ready, key=lambda work: (work.waits_since_s, work.name)):
            first.setdefault(work.queue, work)
        return [work for work in first.values() if not work.aside]

    def _rank(self, work: Work) -> float:
        """What it uses above its quota for its weight; without fair sharing whether it uses any."""
        above = max(0, self.used(work.queue) + work.gpus - self.quotas[work.queue])
        return above / self.quotas[work.queue] if self.fair else float(above > 0)

    def _kept(self, work: Work, free: int) -> int:
        """What Kueue keeps for a workload that it could admit if somebody went."""
        quota, used = self.quotas[work.queue], self.used(work.queue)
        if work.gpus > quota:
            return 0
        return min(free, work.gpus if used + work.gpus > quota else max(0, quota - used))


def run(cohort: Cohort, arrivals: Sequence[Work], until_s: float, after_each: Any) -> None:
    """The history of some arrivals; ``after_each`` is called after each event, at its time. The controller hears of
    what its watches of ClusterQueues tell it: whether anything waits or runs in one, and not how much."""

    async def lived() -> None:
        due = sorted(arrivals, key=lambda work: -work.came_s)
        pass_s, seen = 0.0, ()
        while cohort.now_s < until_s:
            cohort.advance(min(cohort.next_s, pass_s, due[-1].came_s if due else until_s, until_s))
            while due and due[-1].came_s <= cohort.now_s:
                cohort.submit(due.pop())
            uses = tuple(
                (any(work.waits for work in own), any(not work.waits for work in own))
                for name in cohort.quotas
                for own in [[work for work in cohort.works.values() if work.queue == name]]
            )
            if uses != seen:
                seen, pass_s = uses, min(pass_s, cohort.now_s + GATHER_S)
            if cohort.now_s >= pass_s:
                pass_s = cohort.now_s + await cohort.controlled()
            after_each()

    asyncio.run(lived())


def _condition(kind: str, since_s: float) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": _stamp(since_s)}


def _stamp(at_s: float) -> str:
    return stamp(EPOCH_S + at_s)
