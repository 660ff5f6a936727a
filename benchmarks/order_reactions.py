"""From a new Workload to its place in the order: the queues controller as a process, on a real kube-apiserver.

10,000 Workloads of Kueue's wait in one ClusterQueue that evicts nobody. Once all of them have their number, further
ones come one after the other; what is measured is from the watch event of the new Workload until that of its number.
Beside it what computing the order of all of them takes, in this process. Kueue itself does not run: it would be
measured too.
Prints Markdown; returns 1 when a target is missed.

    python -m benchmarks.order_reactions
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tables import markdown

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.runtime.informer import Change

SPACE, SYSTEM, QUEUE, GPU = "ordered", "kopt-system", "gpus", "nvidia.com/gpu"
WORKLOADS, ROUNDS, REPEATS, AT_ONCE = 10_000, 100, 100, 16
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
        ordered_s, reactions_s, computed_s = asyncio.run(_measure(plane.kubeconfig, workloads, rounds))
    finally:
        controller.server.kill()
    print(_table(workloads, ordered_s, reactions_s, computed_s))
    missed = _quantile(reactions_s, 0.99) >= TARGET_REACTION_S or _quantile(computed_s, 0.99) >= TARGET_COMPUTED_S
    return int(missed)


def _flavor() -> Object:
    return {"name": "gpus", "resources": [{"name": GPU, "nominalQuota": "8"}]}


async def _measure(kubeconfig: Path, workloads: int, rounds: int) -> tuple[float, list[float], list[float]]:
    """Seconds until all have their number; of each round; and of each computing of the order."""
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
            return ordered_s, reactions_s, _computed(list(informer.objects.values()))
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


def _computed(documents: list[Object]) -> list[float]:
    from kopt.controllers.queues.ordering import queued_workload
    from kopt.policies.priority.order_writes import order_plan
    from kopt.policies.priority.queue_order import QueueOrder

    kept = [each for each in map(queued_workload, documents) if each is not None]
    workloads = [each.order for each in kept]
    result = []
    for _ in range(REPEATS):
        # Of this process's own: others use the cores as well.
        began_s = time.process_time()
        order_plan(workloads, QueueOrder(), lambda name: True)
        result.append(time.process_time() - began_s)
    return result


def _table(workloads: int, ordered_s: float, reactions_s: list[float], computed_s: list[float]) -> str:
    rows = [
        (f"a new one has its number, beside {workloads:,}", reactions_s, f"P99 < {1000 * TARGET_REACTION_S:.0f} ms"),
        (f"the order of {workloads:,} is computed (CPU)", computed_s, f"P99 < {1000 * TARGET_COMPUTED_S:.0f} ms"),
    ]
    table = markdown(
        ["what", "times", "P50 ms", "P99 ms", "longest ms", "goal"],
        [
            (what, str(len(seconds)), *(f"{1000 * _quantile(seconds, q):.1f}" for q in (0.5, 0.99, 1.0)), goal)
            for what, seconds, goal in rows
        ],
    )
    return f"{table}\n\nAll {workloads:,} were created and numbered within {ordered_s:.0f} s."


def _quantile(seconds: list[float], share: float) -> float:
    import numpy as np

    return float(np.quantile(seconds, share))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
