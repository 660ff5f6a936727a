"""Pods of a queue of KAI's in memory, with what KAI does."""

import json
from typing import Any, cast

from kopt.cluster.admission.review import Review
from kopt.controllers.preemption.kai.preemptor import KaiPreemption
from kopt.controllers.preemption.kai.scheduling_gates import Gating
from kopt.controllers.preemption.kai.snapshot import KaiSnapshot
from kopt.controllers.preemption.kai.views import GATE, KaiQueue, gated, kai_pod
from kopt.controllers.preemption.kube_scheduler.snapshot import Gang, placed
from kopt.controllers.preemption.kube_scheduler.views import PlainPod
from kopt.core.decision import Mode

from .worlds import KINDS, World

Object = dict[str, Any]


class KaiWorld(World):
    """Pods of a queue of KAI's; those that wait are held."""

    takes = KaiPreemption
    reads = staticmethod(kai_pod)

    def __init__(self, room: int = 4) -> None:
        super().__init__(room)
        self.queues = {"team": KaiQueue(12_000, None)}
        self.space_mode, self.managed = "", True
        self.native: list[str] = []

    def add(
        self,
        job: str,
        number: int,
        gpus: int,
        priority: int,
        on: str = "",
        annotations: Object | None = None,
        never: bool = False,
        queue: str = "team",
    ) -> None:
        super().add(job, number, gpus, priority, on, annotations, never)
        pod = self.pods[f"{job}-{number}"]
        pod["metadata"]["labels"] = {"kai.scheduler/queue": queue}
        pod["spec"] |= {"schedulerName": "kai-scheduler", "priorityClassName": "any"}
        if never:
            for one in gated(pod):
                *path, last = (part.replace("~1", "/") for part in one["path"].strip("/").split("/"))
                place = pod
                for part in path:
                    place = place[part]
                place[last] = one["value"]

    def snapshot(self, now_s: float) -> KaiSnapshot:
        seen = [kai_pod(json.loads(json.dumps(one))) for one in self.pods.values()]
        ours = frozenset({"team"} if self.managed else ())
        return KaiSnapshot(
            now_s, [one for one in seen if one], self.nodes, ours=ours, sets=self.sets, queues=self.queues
        )

    def mode(self, _: PlainPod) -> str:
        return self.space_mode

    async def patch(self, pod: PlainPod, changes: Object) -> None:
        await super().patch(pod, {"metadata": {"annotations": changes["metadata"].get("annotations", {})}})
        document = self.pods[pod.key[1]]
        document["spec"] |= changes.get("spec", {})
        for name, value in changes["metadata"].get("labels", {}).items():
            assert value is None
            document["metadata"]["labels"].pop(name)

    async def promise(self, pod: PlainPod, where: str) -> None:
        raise AssertionError("KAI knows no promises")

    def held(self) -> list[str]:
        return [name for name, one in self.pods.items() if one["spec"].get("schedulingGates")]

    def goes_on(self) -> None:
        """Who was evicted is gone; KAI binds who is not held, or would pre-empt for it: whose word it had is noted."""
        for name in [name for name, one in self.pods.items() if "deletionTimestamp" in one["metadata"]]:
            del self.pods[name]
        for name, one in self.pods.items():
            if not one["spec"]["nodeName"] and not one["spec"].get("schedulingGates"):
                self._bind(name)

    def _bind(self, name: str) -> None:
        moment = self.snapshot(self.now_s)
        gang = Gang(tuple(one for one in moment.pods if one.key[1] == name))
        if where := placed(gang, moment, ()):
            self.pods[name]["spec"]["nodeName"] = next(iter(where.values()))
        else:
            self.native.append(self.pods[name]["metadata"]["annotations"].get("kaiwo.ai/preemption", "{}"))


def full(*kinds: str, **queue: int | None) -> KaiWorld:
    """Three nodes, each a gang's, and one that is held."""
    one = KaiWorld()
    for number, kind in enumerate(kinds):
        one.add(f"gang-{number}", 0, 4, 10, f"n{number}", dict(KINDS[kind]))
    one.add("urgent", 0, 4, 1000, never=True)
    one.queues = {"team": KaiQueue(queue.get("quota", 12_000), queue.get("limit"))}
    return one


def ask(one: KaiWorld, pod: Object, gating: Gating | None = None) -> bool:
    """Whether a pod is held as it is created."""
    gating = gating or Gating(cast(Any, one), Mode.ENFORCE, lambda: one.now_s)
    answer = gating.answer(Review("u", "", "Pod", "team", "", "CREATE", False, "", (), pod))
    gates = [found["value"] for found in answer.patch if found["path"] == "/spec/schedulingGates"]
    assert gates in ([], [[{"name": GATE}]])
    return bool(gates)


def new(one: KaiWorld, priority: int = 1000, gpus: int = 4, job: str = "new") -> Object:
    """A pod as it comes to a review."""
    one.add(job, 0, gpus, priority)
    found = one.pods.pop(f"{job}-0")
    for name in ("name", "uid", "creationTimestamp", "resourceVersion"):
        del found["metadata"][name]
    return found
