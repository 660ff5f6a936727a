"""The engines of the arms, each on a control plane of its own, with the same tree of queues."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.shares.day import queue_documents, queue_name
from benchmarks.shares.engines import KaiPods, KueueJobs
from benchmarks.shares.replay import Engine

FINAL, INITIAL = "LessThanOrEqualToFinalShare", "LessThanInitialShare"
_SPACE = "day"
_GRACE_S, _LEAST_S = 600, 0.5
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Arm:
    """``strategies``: of fair sharing in Kueue's own configuration, which has none without them. ``reclaim``: the
    queues' strategy; what is not aggressive our controller sees to."""

    text: str
    engine: str
    strategies: tuple[str, ...] = (FINAL, INITIAL)
    controller: bool = False
    reclaim: str = "aggressive"


ARMS = {
    "kueue": Arm("Kueue, objects as compiled", "kueue"),
    "kueue-final-share": Arm("Kueue, objects as compiled, the first strategy alone", "kueue", (FINAL,)),
    "kueue-unfair": Arm("Kueue without fair sharing", "kueue", ()),
    "kueue-controller": Arm("Kueue, our controller, aggressive", "kueue", controller=True),
    "kueue-conservative": Arm("Kueue, our controller, conservative", "kueue", controller=True, reclaim="conservative"),
    "kueue-balanced": Arm("Kueue, our controller, balanced", "kueue", controller=True, reclaim="balanced"),
    "kai": Arm("KAI, objects as compiled", "kai"),
    "kai-controller": Arm("KAI, our controller", "kai", controller=True),
}


@contextlib.contextmanager
def running(arm: Arm, quotas: Mapping[str, int], capacity: int, scale: float, folder: Path) -> Iterator[Engine]:
    """The arm's engine with its queues, ready for jobs; all of it ends with the context."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from controlplane.plane import ControlPlane

    plane = ControlPlane(folder)
    try:
        plane.api.namespace(_SPACE)
        grace = {"gracePeriod": f"{max(1, round(_GRACE_S / scale))}s"} if arm.reclaim == "conservative" else {}
        fairness = {"reclaimStrategy": arm.reclaim, **grace}
        documents = queue_documents(quotas, capacity, _SPACE, fairness)
        with contextlib.ExitStack() as stack:
            engine = (_kueue if arm.engine == "kueue" else _kai)(plane, arm, capacity, stack)
            _carry_out(plane, arm, documents, scale, stack)
            _wait_for_queues(plane, arm, [queue_name(vc) for vc in quotas])
            yield engine
    finally:
        plane.stop()


def _kueue(plane: Any, arm: Arm, capacity: int, stack: contextlib.ExitStack) -> Engine:
    from controlplane.kueue import Kueue

    stack.callback(Kueue(plane, strategies=arm.strategies).stop)
    return KueueJobs(plane, _SPACE)


def _kai(plane: Any, arm: Arm, capacity: int, stack: contextlib.ExitStack) -> Engine:
    from controlplane.kai import Kai
    from controlplane.kwok import Kwok

    kwok = Kwok(plane)
    stack.callback(kwok.stop)
    nodes = kwok.nodes(1, gpus=capacity, cpu="960", memory="10Ti")
    stack.callback(Kai(plane).stop)
    return KaiPods(plane, _SPACE, nodes.selector)


def _carry_out(
    plane: Any, arm: Arm, documents: tuple[dict[str, Any], ...], scale: float, stack: contextlib.ExitStack
) -> None:
    """The queues as our compiler makes them, written here or by our controller."""
    from kopt.cluster.objects.custom.kaiwo_queue import queue_of
    from kopt.core.scheduling.queue_tree import Engine as Compiler
    from kopt.policies.queues import QueueTree, compile_tree

    if not arm.controller:
        plane.api.apply(*compile_tree(QueueTree.of(map(queue_of, documents)), Compiler(arm.engine)).objects)
        return
    plane.api.namespace("kopt-system")
    plane.apply_crds([Path("deploy/chart/crds") / f"{name}.yaml" for name in ("kaiwoqueues", "kaiwopools")])
    stack.enter_context(_controller(plane, arm.engine, scale))
    plane.api.apply(*documents)


def _wait_for_queues(plane: Any, arm: Arm, names: list[str]) -> None:
    for name in names:
        if arm.engine == "kueue":
            active = "kueue.x-k8s.io/v1beta2", "LocalQueue", name
            plane.api.wait(*active, lambda item: bool(item.get("status")), _SPACE, timeout_s=_PATIENCE_S)
        else:
            plane.api.wait("scheduling.run.ai/v2", "Queue", name, timeout_s=_PATIENCE_S)


@contextlib.contextmanager
def _controller(plane: Any, engine: str, scale: float) -> Iterator[None]:
    """The product's controller; all of its spans that the replay compresses are settings, divided by the scale."""
    from kopt.cluster.client.api import connect
    from kopt.cluster.runtime.signals import run_until
    from kopt.controllers.queues.main import ProcessSettings, Replica
    from kopt.controllers.queues.reconciler import Carrying
    from kopt.core.decision import Mode
    from kopt.core.scheduling.queue_tree import Engine as Compiler

    settings = ProcessSettings(
        kubeconfig=plane.kubeconfig,
        carrying=Carrying(engine=Compiler(engine), mode=Mode.ENFORCE, prune=True, **paced(scale)),
        port=0,
    )
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with connect(plane.kubeconfig) as kube:
            await run_until(stop, Replica(kube, settings))

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def paced(scale: float) -> dict[str, Any]:
    """The spans of the product's controller in a replay, as fields of `controllers.queues.reconciler.Carrying`; nothing
    is looked at more often than twice a second."""
    from kopt.controllers.queues.reconciler import Carrying
    from kopt.policies.queues.reclaim import Pace

    def shorter(span_s: float) -> float:
        return max(_LEAST_S, span_s / scale)

    usual = Carrying()
    pace = Pace(**{field.name: shorter(getattr(usual.pace, field.name)) for field in fields(Pace)})
    return {"pace": pace, "again_s": shorter(usual.again_s), "closely_s": shorter(usual.closely_s)}
