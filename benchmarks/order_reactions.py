"""From a new Workload to its place in the order: the queues controller as a process, on a real kube-apiserver.

10,000 Workloads of Kueue's wait in one ClusterQueue that evicts nobody. Once all of them have their number, further
ones come one after the other; what is measured is from the watch event of the new Workload until that of its number.
Beside it, of the same Workloads, what the order costs in this process: where one of them has changed, and of all of
them from nothing, as at the start of a term. Kueue itself does not run: it would be measured too.
Prints Markdown; returns 1 when a target is missed.

    python -m benchmarks.order_reactions
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tables import markdown

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.runtime.informer import Change

SPACE, SYSTEM, QUEUE, GPU = "ordered", "kopt-system", "gpus", "nvidia.com/gpu"
WORKLOADS, ROUNDS, AT_ONCE = 10_000, 100, 16
CHANGES, TERMS = 1000, 30
TARGET_COMPUTED_S, TARGET_REACTION_S = 0.010, 1.0
_PATIENCE_S = 900.0
_NEVER = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
Object = dict[str, Any]


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table; 0 when both targets are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.order_reactions")
    parser.add_argument("--workloads", type=int, default=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    sizes = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from controlplane.plane import ControlPlane

    with tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder:
        plane = ControlPlane(Path(folder))
        try:
            return _run(plane, sizes.workloads, sizes.rounds)
        finally:
            plane.stop()


def _run(plane: Any, workloads: int, rounds: int) -> int:
    from controlplane import build
    from replicas import ControllerProcess

    bases = build.manifests("kueue") / "config" / "components" / "crd" / "bases"
    names = ("workloads", "clusterqueues", "localqueues", "cohorts", "resourceflavors")
    crds = Path(__file__).resolve().parents[1] / "deploy" / "chart" / "crds"
    plane.apply_crds([*(bases / f"kueue.x-k8s.io_{name}.yaml" for name in names), *sorted(crds.glob("kaiwo*.yaml"))])
    for space in (SYSTEM, SPACE):
        plane.api.namespace(space)
    version = "kueue.x-k8s.io/v1beta1"
    covered = {"coveredResources": [GPU], "flavors": [_flavor()]}
    spec = {"resourceGroups": [covered], "preemption": _NEVER, "namespaceSelector": {}}
    plane.api.create({"apiVersion": version, "kind": "ClusterQueue", "metadata": {"name": QUEUE}, "spec": spec})
    local: Object = {"apiVersion": version, "kind": "LocalQueue", "metadata": {"name": QUEUE, "namespace": SPACE}}
    plane.api.create(local | {"spec": {"clusterQueue": QUEUE}})
    controller = ControllerProcess(plane, "queues", "--mode=enforce", "--order", f"--namespace={SYSTEM}")
    try:
        controller.wait_leading()
        measured = asyncio.run(_measure(plane.kubeconfig, workloads, rounds))
    finally:
        controller.server.kill()
    print(_table(workloads, measured))
    reacted_s, changed_s = _quantile(measured.reactions_s, 0.99), _quantile(measured.changes_s, 0.99)
    return int(reacted_s >= TARGET_REACTION_S or changed_s >= TARGET_COMPUTED_S)


def _flavor() -> Object:
    return {"name": "gpus", "resources": [{"name": GPU, "nominalQuota": "8"}]}


@dataclass(frozen=True)
class Measured:
    """Until all have their number; each reaction; and seconds of the CPU for each change, and for each order of all
    from nothing, where all have their number and where none has."""

    ordered_s: float
    reactions_s: list[float]
    changes_s: list[float]
    anew_s: list[float]
    unwritten_s: list[float]


async def _measure(kubeconfig: Path, workloads: int, rounds: int) -> Measured:
    from kopt.cluster.client.api import connect
    from kopt.cluster.client.resources import KUEUE_WORKLOADS
    from kopt.cluster.runtime.informer import Informer

    async with connect(kubeconfig) as kube:
        seen = _Seen()
        informer: Informer[Object] = Informer(kube, KUEUE_WORKLOADS, namespace=SPACE)
        informer.subscribe(seen.changed)
        watching = asyncio.create_task(informer.run())
        try:
            began_s = time.perf_counter()
            limit = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(_create(kube, number, limit) for number in range(workloads)))
            await seen.wait(lambda: len(seen.numbered_s) >= workloads)
            ordered_s = time.perf_counter() - began_s
            reactions_s = [await _round(kube, seen, workloads + number, limit) for number in range(rounds)]
            return Measured(ordered_s, reactions_s, *_computed(list(informer.objects.values())))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


class _Seen:
    """When the watch showed each Workload first, and first with its number, by name."""

    def __init__(self) -> None:
        self.created_s: dict[str, float] = {}
        self.numbered_s: dict[str, float] = {}
        self._changed = asyncio.Event()

    def changed(self, change: "Change[Object]") -> None:
        from kopt.cluster.workloads.kueue.order import ORDER_KEY

        if change.new is None:
            return
        metadata, now_s = change.new["metadata"], time.perf_counter()
        self.created_s.setdefault(metadata["name"], now_s)
        if ORDER_KEY in (metadata.get("annotations") or {}):
            self.numbered_s.setdefault(metadata["name"], now_s)
        self._changed.set()

    async def wait(self, is_so: Any) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


async def _round(kube: "Kube", seen: _Seen, number: int, limit: asyncio.Semaphore) -> float:
    # At any time of the controller's rounds.
    await asyncio.sleep(random.Random(number).uniform(0.3, 0.9))
    await _create(kube, number, limit)
    name = _name(number)
    await seen.wait(lambda: name in seen.numbered_s)
    return seen.numbered_s[name] - seen.created_s[name]


async def _create(kube: "Kube", number: int, limit: asyncio.Semaphore) -> None:
    from kopt.cluster.client.resources import KUEUE_WORKLOADS

    gpus = str(2 ** (number % 4))
    container = {"name": "main", "image": "any", "resources": {"requests": {GPU: gpus}, "limits": {GPU: gpus}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    pods = {"name": "main", "count": 1, "template": template}
    body = {
        "apiVersion": KUEUE_WORKLOADS.api_version,
        "kind": "Workload",
        "metadata": {"name": _name(number), "namespace": SPACE},
        "spec": {"queueName": QUEUE, "priority": 50 * (number % 3), "podSets": [pods]},
    }
    async with limit:
        await kube.create(KUEUE_WORKLOADS, body)


def _name(number: int) -> str:
    return f"w-{number:05}"


def _computed(documents: list[Object]) -> tuple[list[float], list[float], list[float]]:
    from kopt.controllers.queues.ordering import queued_workload
    from kopt.core.scheduling.queue_order import OrderedWorkload
    from kopt.policies.priority.queue_order import QueueOrder
    from kopt.policies.priority.standing_order import StandingOrder

    def of_all(workloads: list[OrderedWorkload]) -> StandingOrder:
        standing = StandingOrder(QueueOrder())
        standing.include({QUEUE})
        for each in workloads:
            standing.put(each)
        return standing

    def changed(workload: OrderedWorkload) -> None:
        standing.put(workload)
        next(standing.writes)

    kept = [replace(each.order, queue=QUEUE) for each in map(queued_workload, documents) if each is not None]
    new = [replace(each, priority=each.own_priority, mark=None) for each in kept]
    standing, changes_s = of_all(kept), []
    for index in random.Random(0).choices(range(len(kept)), k=CHANGES):
        changes_s.append(_cpu_s(partial(changed, new[index])))
        standing.put(kept[index])
    anew_s, unwritten_s = ([_cpu_s(partial(of_all, each)) for _ in range(TERMS)] for each in (kept, new))
    return changes_s, anew_s, unwritten_s


def _cpu_s(work: Callable[[], object]) -> float:
    """Of this process's own: others use the cores as well."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _table(workloads: int, measured: Measured) -> str:
    rows = [
        (f"a new one has its number, beside {workloads:,}", measured.reactions_s, f"P99 < {TARGET_REACTION_S:.0f} s"),
        (
            f"one of {workloads:,} changes: the order stands again (CPU)",
            measured.changes_s,
            f"P99 < {1000 * TARGET_COMPUTED_S:.0f} ms",
        ),
        ("the order of all from nothing, all numbered (CPU)", measured.anew_s, "–"),
        ("the order of all from nothing, none numbered (CPU)", measured.unwritten_s, "–"),
    ]
    table = markdown(
        ["what", "times", "P50 ms", "P99 ms", "longest ms", "goal"],
        [
            (what, str(len(seconds)), *(f"{1000 * _quantile(seconds, q):.2f}" for q in (0.5, 0.99, 1.0)), goal)
            for what, seconds, goal in rows
        ],
    )
    return f"{table}\n\nAll {workloads:,} were created and numbered within {measured.ordered_s:.0f} s."


def _quantile(seconds: list[float], share: float) -> float:
    import numpy as np

    return float(np.quantile(seconds, share))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
