"""A percentage of queues: whole trees are written or left, and what is left says so in its status."""

import asyncio
import time
from typing import Any

from attacks.api_in_memory import MemoryKube
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.resources import KAIWO_QUEUES, KUEUE_FLAVORS
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.workloads.queue_trees.live import KINDS
from kopt.controllers.queues.reconciler import Carrying, Reconciler
from kopt.controllers.queues.rollout import Rollout
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import MANAGED, MANAGED_LABEL, Engine, KaiwoQueue
from kopt.core.switches import OFF, ON, Owner, Switches
from kopt.policies.queues import QueueTree

from .trees import declared, trees

KUEUE = {kind.kind: kind for kind in KINDS[Engine.KUEUE]}


class Share:
    """A gate at a percentage."""

    def __init__(self, percent: int) -> None:
        self._switches = Switches({"declared-queues": percent})

    def mode(self, feature: str, owner: Owner, mode: Mode) -> Mode:
        return mode if self._switches.includes(feature, owner) else Mode.OBSERVE

    def is_off(self, feature: str) -> bool:
        return self._switches.percent(feature) == OFF


class Fence:
    """Writes of a leader."""

    holds = True

    def __init__(self, kube: MemoryKube) -> None:
        self.replace: Any = kube.replace


@given(trees(), st.integers(0, 100))
def test_a_tree_is_on_one_side_as_a_whole(queues: list[KaiwoQueue], percent: int) -> None:
    tree = QueueTree.of(queues)
    rollout = Rollout(tree, Share(percent), Mode.ENFORCE)
    assert all(rollout.includes(name) == rollout.includes(tree.lineage(name)[-1]) for name in tree.queues)
    assert not any(Rollout(tree, Share(percent), Mode.ANNOTATE).includes(name) for name in tree.queues)


NAMES = [f"department-{number}" for number in range(99)]
IN = next(name for name in NAMES if Rollout(QueueTree.of([]), Share(10), Mode.ENFORCE).includes(name))
OUT = next(name for name in NAMES if not Rollout(QueueTree.of([]), Share(10), Mode.ENFORCE).includes(name))


def passes(kube: MemoryKube, percent: int, *, prune: bool = False) -> None:
    reconciler = Reconciler(
        kube,  # type: ignore[arg-type]
        Fence(kube),
        Carrying(Engine.KUEUE, Mode.ENFORCE, prune),
        lambda: kube.all(KAIWO_QUEUES),
        list,
        lambda *_: None,
        time.time,
        Isolation("queues"),
        Share(percent),
    )
    asyncio.run(reconciler.step())


def written(kube: MemoryKube) -> set[str]:
    return {one["metadata"]["name"] for one in (*kube.all(KUEUE["ClusterQueue"]), *kube.all(KUEUE["Cohort"]))}


def says(kube: MemoryKube, name: str) -> tuple[str, str]:
    found = kube.find(KAIWO_QUEUES, name)
    assert found is not None
    condition = found["status"]["conditions"][0]
    return condition["reason"], condition["message"]


def test_what_is_left_out_is_said_and_written_once_it_is_in() -> None:
    kube = MemoryKube()
    for root in (IN, OUT):
        kube.put(KAIWO_QUEUES, declared(root))
        kube.put(KAIWO_QUEUES, declared(f"{root}-team", root))
    passes(kube, OFF)
    assert written(kube) == set()
    assert not kube.all(KUEUE["ResourceFlavor"])
    assert says(kube, IN)[0] == "OnlyObserved"
    passes(kube, 10)
    assert written(kube) == {IN, f"{IN}-team"}
    assert says(kube, f"{IN}-team")[0] == "AsDeclared"
    reason, message = says(kube, f"{OUT}-team")
    assert (reason, "declared-queues is switched off" in message) == ("OnlyObserved", True)
    passes(kube, ON)
    assert written(kube) == {IN, f"{IN}-team", OUT, f"{OUT}-team"}
    assert says(kube, OUT)[0] == "AsDeclared"


def test_nothing_is_deleted_while_it_is_off() -> None:
    kube = MemoryKube()
    kube.put(KUEUE_FLAVORS, {"metadata": {"name": "default"}})
    labels = {MANAGED_LABEL: MANAGED}
    kube.put(KUEUE["ClusterQueue"], {"metadata": {"name": "gone", "labels": labels}, "spec": {}})
    passes(kube, OFF, prune=True)
    assert written(kube) == {"gone"}
    passes(kube, ON, prune=True)
    assert written(kube) == set()
