"""Plays a plan onto an API server: as users create pods, schedulers bind them, kubelets end them and nodes get lost."""

import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from controlplane.api import Api, Refused

from kopt.core.times import stamp
from tests.day.agents import GPU, Node
from tests.day.plan import DAY_S, Plan, Run
from tests.day.truth import Held, Truth

SCHEDULER = "replay"
"""So that no real one binds them."""
XID = "94"


@dataclass
class Player:
    """``spaces``: namespaces by team; ``nodes``: as the plan numbers them; ``span_s``: how long the day lasts."""

    api: Api
    plan: Plan
    truth: Truth
    nodes: Sequence[Node]
    spaces: dict[str, str]
    span_s: float
    latest_s: float = 0.0
    """By how much an action was behind its time, at most."""

    def __post_init__(self) -> None:
        actions: list[tuple[float, int, Callable[[], None]]] = []
        for run in self.plan.runs:
            actions.append((run.start_s, 1, lambda run=run: self._starts(run)))  # type: ignore[misc]
            if run.end_s < DAY_S:
                actions.append((run.end_s, 0, lambda run=run: self._ends(run)))  # type: ignore[misc]
        _, lost_s, _ = self.plan.lost
        actions += [(lost_s, 2, self._loses_a_node), (self.plan.xid[2], 2, self._has_an_xid)]
        self._actions = [(at_s, order, number, do) for number, (at_s, order, do) in enumerate(actions)]
        heapq.heapify(self._actions)
        self._day_s = 0.0

    def until(self, day_s: float) -> None:
        """Plays on to a time of the day; at it nothing changes until this is called again."""
        begin_s = time.monotonic() - self._day_s / DAY_S * self.span_s
        with ThreadPoolExecutor(8) as several:
            while self._actions and self._actions[0][0] <= day_s:
                due_s = begin_s + self._actions[0][0] / DAY_S * self.span_s
                time.sleep(max(0.0, due_s - time.monotonic()))
                # What is due at once: ends before starts, which may need their GPUs.
                for order in (0, 1, 2):
                    batch = []
                    while self._actions and self._actions[0][0] <= day_s and self._actions[0][1] == order:
                        if begin_s + self._actions[0][0] / DAY_S * self.span_s > time.monotonic():
                            break
                        batch.append(heapq.heappop(self._actions)[3])
                    list(several.map(lambda do: do(), batch))
                self.latest_s = max(self.latest_s, time.monotonic() - due_s)
            time.sleep(max(0.0, begin_s + day_s / DAY_S * self.span_s - time.monotonic()))
        self._day_s = day_s

    def _starts(self, run: Run) -> None:
        space = self.spaces[run.team]
        self.api.create(_pod(run, space))
        target = {"apiVersion": "v1", "kind": "Node", "name": self.nodes[run.node].name}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": run.pod}, "target": target}
        path = self.api.path("v1", "Pod", space, run.pod)
        self.api.request("POST", f"{path}/binding", json=binding)
        self.truth.bound(Held(run, space, time.time()))

    def _ends(self, run: Run) -> None:
        held = self.truth.held[run.pod]
        if run.is_deleted:
            self.api.delete("v1", "Pod", run.pod, held.namespace, gracePeriodSeconds=0)
        else:
            self._succeeds(held)
        held.end_s = time.time()

    def _succeeds(self, held: Held) -> None:
        """As its kubelet writes it."""
        now = stamp(time.time())
        terminated = {"exitCode": 0, "reason": "Completed", "startedAt": stamp(held.bound_s), "finishedAt": now}
        container = {"name": "main", "image": "m", "imageID": "", "ready": False, "restartCount": 0}
        ready = {"type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
        status = {
            "phase": "Succeeded",
            "conditions": [ready],
            "containerStatuses": [{**container, "state": {"terminated": terminated}}],
        }
        self._patch_status(self.api.path("v1", "Pod", held.namespace, held.run.pod), status)

    def _loses_a_node(self) -> None:
        """As the controller of nodes writes it; its kubelet, here kwok, has nothing to do with it any more."""
        number = self.plan.lost[0]
        name = self.nodes[number].name
        self.api.patch("v1", "Node", name, {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}})
        time.sleep(1)
        condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        times = {"lastTransitionTime": stamp(time.time()), "lastHeartbeatTime": stamp(time.time())}
        self._patch_status(self.api.path("v1", "Node", "", name), {"conditions": [condition | times]})
        self.nodes[number].lost = True
        self.truth.closed_since_s[number] = time.time()

    def _has_an_xid(self) -> None:
        """The driver tells of it, and the device plugin gives the GPU to nobody any more."""
        node, gpu, _ = self.plan.xid
        self.nodes[node].xids[gpu] = {XID: 1.0}
        status = {"allocatable": {GPU: str(self.truth.gpus - 1)}}
        self._patch_status(self.api.path("v1", "Node", "", self.nodes[node].name), status)
        self.truth.broken[node] = 1

    def _patch_status(self, path: str, status: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        response = self.api.http.patch(f"{path}/status", json={"status": status}, headers=headers)
        if not response.is_success:
            raise Refused(response)


def _pod(run: Run, space: str) -> dict[str, Any]:
    limits = {GPU: str(len(run.gpus))} if run.gpus else {"cpu": "1"}
    notes = {"kaiwo.ai/gpu-fraction": f"{run.fraction_milli / 1000:g}"} if run.fraction_milli else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": run.pod, "namespace": space, "annotations": notes},
        "spec": {
            "schedulerName": SCHEDULER,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "m", "resources": {"limits": limits, "requests": limits}}],
        },
    }
