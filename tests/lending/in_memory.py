"""A cluster in memory, as far as lending goes: an API server's objects, Kueue's part in them, and the controller, which
knows nothing at the beginning of each of its lives but what the objects say."""

import asyncio
import contextlib
import copy
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, cast

from kopt.cluster.client.api import Conflict, NotFound, Page
from kopt.cluster.client.errors import Forbidden, Invalid
from kopt.cluster.client.resources import (
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LENDING_POOLS,
    NAMESPACES,
    PODS,
    Object,
    Resource,
)
from kopt.cluster.objects.kai import QUEUE_LABEL
from kopt.controllers.lending.executor import Executor
from kopt.controllers.lending.forecasts import Forecasts
from kopt.controllers.lending.planner import Planner
from kopt.controllers.lending.ports import ControllerSettings, Writer
from kopt.controllers.lending.queueing.queues import Queues
from kopt.controllers.lending.reconciler import Reconciler
from kopt.controllers.lending.state import LiveCluster
from kopt.core.prediction import ModelVersion, Prediction
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, HorizonForecast, SeriesForecast

GPU, NOW_S = "nvidia.com/gpu", 1_900_000_020.0
QUANTILES = (0.5, 0.9, 0.95, 0.99)
Key = tuple[str, str, str]


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KilledError(BaseException):
    """The controller ends here."""


class World:
    """``refuses`` are names of objects that the API server lets nobody change. Demand is in GPUs, by series."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.now_s, self._versions = NOW_S, itertools.count(1)
        self.demand: dict[str, float] = {}
        self.refuses: set[str] = set()
        self.dies_after: int | None = None
        self.writes: Counter[str] = Counter()
        self.answer: Callable[[DemandQuery], DemandForecast] = self._forecast
        self.put(NAMESPACES, {"metadata": {"name": "team", "labels": {"kaiwo.ai/managed": "true"}}})

    # --- Objects -----------------------------------------------------------------------------------------------------

    def put(self, resource: Resource, document: Object) -> Object:
        metadata = document["metadata"]
        metadata.setdefault("uid", f"uid-{resource.plural}-{metadata['name']}-{next(self._versions)}")
        metadata.setdefault("creationTimestamp", stamp(self.now_s + next(self._versions)))
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[resource.path(), metadata.get("namespace", ""), metadata["name"]] = document
        return document

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        return self.objects[resource.path(), namespace, name]

    def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        del self.objects[resource.path(), namespace, name]

    def pool(self, name: str = "chat", gpus: int = 8, **spec: Any) -> None:
        service = {
            "name": name,
            "namespace": "serving",
            "selector": {"matchLabels": {"app": name}},
            "capacityPerGpu": 1,
        }
        borrowers = [{"system": "Kueue", "queue": "lent"}]
        wanted = {
            "gpus": gpus,
            "services": [service],
            "hold": "0s",
            "leadTime": "5m",
            "mode": "enforce",
            "borrowers": borrowers,
            **spec,
        }
        known = self.objects.get((LENDING_POOLS.path(), "", name), {"metadata": {"name": name}})
        self.put(LENDING_POOLS, known | {"spec": wanted})

    def status(self, pool: str = "chat") -> Object:
        return dict(self.get(LENDING_POOLS, pool).get("status") or {})

    def queue(self, name: str = "lent", quotas: dict[str, Any] | None = None, **spec: Any) -> None:
        """A ClusterQueue with ``quotas`` of GPUs by flavour, and a LocalQueue of its name."""
        flavors = [
            {"name": flavor, "resources": [{"name": GPU, "nominalQuota": quota}]}
            for flavor, quota in (quotas or {"h100": "0"}).items()
        ]
        groups = [{"coveredResources": [GPU], "flavors": flavors}]
        self.put(KUEUE_CLUSTER_QUEUES, {"metadata": {"name": name}, "spec": {"resourceGroups": groups, **spec}})
        local = {"metadata": {"name": name, "namespace": "team"}, "spec": {"clusterQueue": name}}
        self.put(KUEUE_LOCAL_QUEUES, local)

    def quota(self, name: str = "lent", flavor: str = "h100") -> int:
        flavors = self.get(KUEUE_CLUSTER_QUEUES, name)["spec"]["resourceGroups"][0]["flavors"]
        return int(next(one["resources"][0]["nominalQuota"] for one in flavors if one["name"] == flavor))

    def kai_queue(self, name: str, limit: float) -> None:
        self.put(KAI_QUEUES, {"metadata": {"name": name}, "spec": {"resources": {"gpu": {"limit": limit, "quota": 0}}}})

    def submit(self, name: str, gpus: int, queue: str = "lent") -> None:
        """A Workload that waits."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"job-{name}", "controller": True}
        template = {"spec": {"containers": [{"name": "a", "resources": {"limits": {GPU: str(gpus)}}}]}}
        self.put(
            KUEUE_WORKLOADS,
            {
                "metadata": {"name": name, "namespace": "team", "ownerReferences": [owner]},
                "spec": {"queueName": queue, "podSets": [{"name": "main", "count": 1, "template": template}]},
                "status": {},
            },
        )

    def running_pod(self, name: str, gpus: int, owner: Object, namespace: str = "team", **labels: str) -> None:
        self.put(
            PODS,
            {
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "annotations": self._notes(),
                    "labels": labels,
                    "ownerReferences": [owner] if owner else [],
                },
                "spec": {"nodeName": "node", "containers": [{"name": "a", "resources": {"limits": {GPU: str(gpus)}}}]},
                "status": {"phase": "Running"},
            },
        )

    def notes(self) -> None:
        """All agents say again what they see."""
        for (path, *_), one in list(self.objects.items()):
            if path == PODS.path():
                one["metadata"]["annotations"] |= self._notes()
                self.put(PODS, one)

    def _notes(self) -> Object:
        """What a log agent writes, about a checkpoint half a minute ago."""
        return {
            "kaiwo.ai/checkpoint-state": "TRAIN",
            "kaiwo.ai/checkpoint-safe": "true",
            "kaiwo.ai/checkpoint-observed-at": stamp(self.now_s),
            "kaiwo.ai/work-at-risk": "100",
            "kaiwo.ai/work-at-risk-interval": "50-200",
            "kaiwo.ai/checkpoint-model": "logs/7",
            "kaiwo.ai/last-checkpoint-time": stamp(self.now_s - 30),
            "kaiwo.ai/last-checkpoint-step": "500",
        }

    def end(self, name: str) -> None:
        """A Workload is deleted, with its pod."""
        self.delete(KUEUE_WORKLOADS, name, "team")
        self.objects.pop((PODS.path(), "team", name), None)

    # --- Kueue's part ------------------------------------------------------------------------------------------------

    def kueue(self) -> None:
        """What is inactive stops; who waits is admitted in its order where it fits."""
        views = [one for (path, *_), one in self.objects.items() if path == KUEUE_WORKLOADS.path()]
        for one in views:
            if one["spec"].get("active") is False and one["status"].get("admission"):
                one["status"] = {"conditions": [self._condition("Evicted"), self._condition("QuotaReserved", "False")]}
                self.put(KUEUE_WORKLOADS, one)
                self.objects.pop((PODS.path(), "team", one["metadata"]["name"]), None)
        for one in sorted(views, key=lambda one: str(one["metadata"]["creationTimestamp"])):
            if one["spec"].get("active") is not False and not one["status"].get("admission"):
                self._admit(one)

    def _admit(self, one: Object) -> None:
        gpus, queue = self.gpus(one), one["spec"]["queueName"]
        document = self.objects.get((KUEUE_CLUSTER_QUEUES.path(), "", queue))
        flavors = document["spec"]["resourceGroups"][0]["flavors"] if document else []
        for flavor in flavors:
            if self.used(queue, flavor["name"]) + gpus <= int(flavor["resources"][0]["nominalQuota"]):
                usage = {"name": "main", "flavors": {GPU: flavor["name"]}, "resourceUsage": {GPU: str(gpus)}}
                one["status"] = {
                    "admission": {"clusterQueue": queue, "podSetAssignments": [usage]},
                    "conditions": [self._condition("QuotaReserved")],
                }
                self.put(KUEUE_WORKLOADS, one)
                owner = one["metadata"]["ownerReferences"][0]
                return self.running_pod(one["metadata"]["name"], gpus, owner)
        return None

    def _condition(self, kind: str, status: str = "True") -> Object:
        return {"type": kind, "status": status, "lastTransitionTime": stamp(self.now_s), "reason": "", "message": ""}

    @staticmethod
    def gpus(one: Object) -> int:
        return int(one["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])

    def used(self, queue: str, flavor: str = "h100") -> int:
        total = 0
        for (path, *_), one in self.objects.items():
            admission = one.get("status", {}).get("admission") if path == KUEUE_WORKLOADS.path() else None
            if admission and admission["clusterQueue"] == queue:
                total += self.gpus(one) * (admission["podSetAssignments"][0]["flavors"][GPU] == flavor)
        return total

    def runs(self) -> set[str]:
        return {
            name
            for (path, _, name), one in self.objects.items()
            if path == KUEUE_WORKLOADS.path() and one["status"].get("admission")
        }

    def held(self) -> set[str]:
        return {
            name
            for (_, _, name), one in self.objects.items()
            if (one["metadata"].get("labels") or {}).get("kaiwo.ai/held") == "lending"
        }

    # --- The API server's part ---------------------------------------------------------------------------------------

    async def pages(self, resource: Resource, namespace: str = "", **_: Any) -> AsyncIterator[Page]:
        items = [copy.deepcopy(one) for (path, *_), one in self.objects.items() if path == resource.path()]
        yield Page(items, str(next(self._versions)), "")

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None

    async def patch(self, resource: Resource, seen: Object, changes: Object) -> Object:
        key, document = self._seen(resource, seen)
        if self.dies_after is not None:
            if self.dies_after == 0:
                raise KilledError
            self.dies_after -= 1
        self.writes[f"{resource.plural}/{key[2]}"] += 1
        after = merged(document, changes)
        groups = after["spec"]["resourceGroups"] if resource == KUEUE_CLUSTER_QUEUES else ()
        for quota in (one["nominalQuota"] for group in groups for it in group["flavors"] for one in it["resources"]):
            if not re.fullmatch(r"\d+k?", str(quota)):
                raise Invalid(422, "Invalid", f"nominalQuota: {quota!r}")
        return copy.deepcopy(self.put(resource, after))

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        assert subresource == "status"
        _, document = self._seen(resource, body)
        return copy.deepcopy(self.put(resource, document | {"status": json.loads(json.dumps(body["status"]))}))

    async def create(self, resource: Resource, body: Object) -> Object:
        return copy.deepcopy(self.put(resource, body))

    def _seen(self, resource: Resource, seen: Object) -> tuple[Key, Object]:
        metadata = seen["metadata"]
        key = (resource.path(), metadata.get("namespace", ""), metadata["name"])
        if key not in self.objects:
            raise NotFound(404, "NotFound", key[2])
        if key[2] in self.refuses:
            raise Forbidden(403, "Forbidden", f"admission webhook denied the request for {key[2]}")
        if self.objects[key]["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise Conflict(409, "Conflict", key[2])
        return key, copy.deepcopy(self.objects[key])

    # --- The controller ----------------------------------------------------------------------------------------------

    def life(self, steps: int = 1) -> None:
        """From its start to its end."""
        asyncio.run(self._live(steps))

    def lives(self, count: int) -> None:
        """One after the other, a minute apart, with Kueue and the log agents between them."""
        for _ in range(count):
            self.life()
            self.kueue()
            self.now_s += 60.0
            self.notes()

    async def _live(self, steps: int) -> None:
        cluster = LiveCluster(cast(Any, self))
        watching = [asyncio.create_task(one.run()) for one in cluster.informers]
        await asyncio.gather(*(one.synced.wait() for one in cluster.informers))
        settings, writer = ControllerSettings(), Writer(cast(Any, self), cluster, cast(Any, Reading(self)))

        async def ask(query: DemandQuery) -> DemandForecast:
            return self.answer(query)

        forecasts = Forecasts(ask, cluster.nudge, settings.stale_s, lambda: self.now_s)
        planner = Planner(cluster, forecasts, settings, Queues(cluster, settings.policy.stale_s))
        executor = Executor(writer, lambda *_: None, settings.policy.stale_s)
        reconciler = Reconciler(
            cluster, writer, forecasts, planner, executor, settings, lambda *_: None, lambda: self.now_s
        )
        pools = [(one.spec, planner.lead_s(one)) for one in cluster.pools() if one.spec is not None]
        await forecasts.refresh(pools)
        with contextlib.suppress(KilledError):
            for _ in range(steps):
                await reconciler.step()
        self.dies_after = None
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    def _forecast(self, query: DemandQuery) -> DemandForecast:
        model = ModelVersion("demand-pooled", "7")
        found = []
        for one in query.series:
            told = self._predicted(self.demand.get(one.name, 0.0), model)
            found.append(
                SeriesForecast(
                    one.name, "requests", 300, tuple([HorizonForecast(int(h), told) for h in query.horizons_s])
                )
            )
        return DemandForecast(tuple(found), model)

    def _predicted(self, amount: float, model: ModelVersion) -> Prediction:
        return Prediction(
            amount,
            amount,
            amount,
            0.98,
            "requests",
            0.9,
            model,
            quantiles=dict.fromkeys(QUANTILES, amount),
            features_at_s=self.now_s,
        )

    def job(self, name: str, gpus: int, queue: str, **metadata: Any) -> Object:
        """A Job of KAI's with a pod that runs."""
        template = {
            "metadata": {"labels": {QUEUE_LABEL: queue}},
            "spec": {"containers": [{"name": "a", "resources": {"limits": {GPU: str(gpus)}}}]},
        }
        made = self.put(
            JOBS,
            {
                "metadata": {"name": name, "namespace": "team", **metadata},
                "spec": {"parallelism": 1, "suspend": False, "template": template},
                "status": {},
            },
        )
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": made["metadata"]["uid"],
            "controller": True,
        }
        self.running_pod(name, gpus, owner, **{QUEUE_LABEL: queue})
        return made


class Reading:
    """What is asked of the API server by name."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        key = (resource.path(), namespace, name)
        if key not in self._world.objects:
            raise NotFound(404, "NotFound", name)
        return copy.deepcopy(self._world.objects[key])


def merged(before: Any, changes: Any) -> Any:
    """RFC 7386."""
    if not isinstance(changes, dict):
        return changes
    found = dict(before) if isinstance(before, dict) else {}
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found
