"""Every borrower in a cohort needs all of its queues: they are read when they change, not for each borrower."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kopt.cluster.client.resources import Object
from kopt.controllers.lending.queueing import kueue
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.lending_pool import Borrower
from kopt.core.scheduling.quota import QuotaNode, cohort_key

GPU = "nvidia.com/gpu"


def cluster_queue(name: str, own: int) -> Object:
    quota = {"name": GPU, "nominalQuota": str(own), "borrowingLimit": "0"}
    groups = [{"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [quota]}]}]
    return {"metadata": {"name": name}, "spec": {"cohort": "gpus", "resourceGroups": groups}}


def test_a_queue_is_read_once_for_each_of_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "b", "c"]
    queues = {name: cluster_queue(name, 4) for name in names}
    cluster: Any = SimpleNamespace(
        queues=lambda _: dict(queues),
        cohorts=lambda: [QuotaNode(cohort_key("gpus"), "", {})],
        workloads=list,
        pods=list,
        pending_evictions=dict,
        flavors=dict,
    )
    read: list[str] = []

    def counted(document: Object) -> Any:
        read.append(document["metadata"]["name"])
        return original(document)

    original = kueue.read_cluster_queue
    monkeypatch.setattr(kueue, "read_cluster_queue", counted)
    borrowers = kueue.Kueue(cluster, cast(Any, None))

    def own_of(now_s: float) -> list[int]:
        return [borrowers.queue(Borrower(System.KUEUE, name), GPU, now_s, weigh=False).own for name in names]

    assert own_of(1.0) == [4, 4, 4]
    assert sorted(read) == names
    queues["b"] = cluster_queue("b", 7)
    del queues["c"], names[2]
    assert own_of(2.0) == [4, 7]
    assert read[3:] == ["b"]
