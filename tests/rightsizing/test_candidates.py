"""Which changes of which workloads come into question, and what is said where one cannot be taken back."""

import asyncio
import copy
import time
from collections.abc import Sequence

import pytest

from kopt.cli.errors import Refused
from kopt.cli.rightsize.apply import restored
from kopt.cli.rightsize.choice import select
from kopt.cli.rightsize.reading import workload_of
from kopt.cluster.client.api import Unreachable
from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.objects.resize_history import RESIZES, written
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.cluster.workloads.resizing.pods import NotDone, ResizedPods
from kopt.cluster.workloads.resizing.use import together
from kopt.controllers.overview.running_workloads import pods_of
from kopt.controllers.rightsizing.candidates import Candidate, candidates_of
from kopt.core.reason import Reason
from kopt.core.units import GIB
from kopt.core.workload.rightsizing import Bounds, ContainerUse, Lever, Outcome, Resize, ResizeRecord

USE = ContainerUse(1000, 1500, 2 * GIB, 86_400)
NOW_S = 1e9


def _pod(name: str = "trainer", **annotations: str) -> Object:
    resources = {"requests": {"cpu": "8", "memory": "5Gi"}, "limits": {"nvidia.com/gpu": "1"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "research", "uid": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": resources}]},
        "status": {"phase": "Running"},
    }


def _candidates(*pods: Object, use: ContainerUse | None = USE, ended_by_kaiwo: bool = False) -> list[Candidate]:
    uses = {("research", pod["metadata"]["name"], "main"): use for pod in pods if use}
    (pod_kind,) = pods_of(pods[0], BY_KEY["", "Pod"], PODS)
    return list(candidates_of(workload_of(pod_kind, ended_by_kaiwo=ended_by_kaiwo), pods, uses, NOW_S))


def _codes(candidates: Sequence[Candidate]) -> set[str]:
    return {each.result.code if isinstance(each.result, Reason) else "" for each in candidates}


def test_each_resource_is_a_candidate_and_the_larger_share_is_chosen() -> None:
    candidates = _candidates(_pod())
    assert [(each.lever, each.freed) for each in candidates] == [(Lever.CPU, 4000), (Lever.MEMORY, 5 * GIB // 2)]
    assert select(candidates, None, "").lever is Lever.CPU
    assert select(candidates, Lever.MEMORY, "main").lever is Lever.MEMORY


def test_without_a_change_every_reason_is_said() -> None:
    with pytest.raises(Refused, match="No series says what main uses"):
        select(_candidates(_pod(), use=None), None, "")


def test_what_kaiwo_ends_is_left_alone() -> None:
    assert _codes(_candidates(_pod(), ended_by_kaiwo=True)) == {"KAIWO_ENDS_IT"}


def test_who_opts_out_is_left_alone() -> None:
    assert _codes(_candidates(_pod(**{"kaiwo.ai/opt-out": "true"}))) == {"OPTED_OUT"}


def test_pods_that_want_different_resources_are_left_alone() -> None:
    other = copy.deepcopy(_pod("other"))
    other["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4"
    assert _codes(_candidates(_pod(), other)) == {"PODS_DIFFER"}


def test_an_open_change_forbids_the_next_one_of_either_resource() -> None:
    record = ResizeRecord(Resize("main", Lever.CPU, Bounds(8000), Bounds(4000)), NOW_S, Outcome.OPEN)
    assert _codes(_candidates(_pod(**{RESIZES: written([record])}))) == {"CHANGE_IS_OPEN"}
    assert _codes(_candidates(_pod(**{RESIZES: "nonsense"}))) == {"HISTORY_UNREADABLE"}


def test_a_pod_that_is_not_measured_leaves_its_workload_unmeasured() -> None:
    assert together([USE, None]) is None
    more = ContainerUse(2000, 3000, GIB, 3600)
    assert together([USE, more]) == ContainerUse(2000, 3000, 2 * GIB, 3600)


class _Away(ResizedPods):
    """Pods behind an API server that is away ``times`` times."""

    def __init__(self, times: int) -> None:
        super().__init__(None, [_pod()], Resize("main", Lever.CPU, Bounds(8000), Bounds(4000)), time.time)  # type: ignore[arg-type]
        self.times = times

    async def restore(self, reason: str) -> list[NotDone]:
        self.times -= 1
        if self.times >= 0:
            raise Unreachable("connection refused")
        return []


def test_taking_back_is_tried_again() -> None:
    assert asyncio.run(restored(_Away(1), "why", 30.0, lambda _: None)) == []


def test_what_stands_is_said_with_the_commands_that_take_it_back() -> None:
    with pytest.raises(Refused) as refused:
        asyncio.run(restored(_Away(9), "why", 0.0, lambda _: None))
    patch = '{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"8"}}}]}}'
    assert f"kubectl -n research patch pod trainer --subresource resize -p '{patch}'" in str(refused.value)
