"""Whose word counts for a pod: its own annotation, its namespace's, the extender's, as in the webhook."""

from collections.abc import Callable

import orjson
import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.controllers.extender.binding.request import Binder
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.protocol import parse_offer
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.core.decision import Mode
from kopt.policies.placement.fleet import Fleet
from tests.extender.conftest import RunningExtender, gpu_pod
from tests.extender.test_books import node
from tests.extender.test_scheduling_by_the_policy import INDICES, bound

Start = Callable[..., RunningExtender]


class Nowhere(Binder):
    """Nothing is bound here."""

    def __init__(self) -> None:
        pass


def left(default: Mode, namespace: str, own: str, *, may_lower: bool = True) -> int:
    """How many of two nodes filter leaves: one where it acts."""
    settings = ExtenderSettings(default, workload_may_lower=may_lower)
    extender = Extender(Fleet(), Nowhere(), settings, ExtenderMetrics())
    for name in "ab":
        extender.node_changed(Change(ChangeKind.ADDED, ("", name), None, node(name)))
    extender.namespace_changed(Change(ChangeKind.ADDED, ("", "ns"), None, namespace))
    pod = gpu_pod("p", "ns", annotations={"kaiwo.ai/mode": own} if own else None)
    pod["metadata"]["uid"] = "p"
    offer = parse_offer(orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["a", "b"]}))
    return len(orjson.loads(extender.filter(offer))["NodeNames"])


@pytest.mark.parametrize(
    ("default", "namespace", "own", "acts"),
    [
        (Mode.OBSERVE, "", "", False),
        (Mode.ENFORCE, "", "", True),
        (Mode.OBSERVE, "enforce", "", True),
        (Mode.ENFORCE, "observe", "", False),
        (Mode.OBSERVE, "observe", "enforce", True),
        (Mode.ENFORCE, "enforce", "annotate", False),
        (Mode.ENFORCE, "enfroce", "", True),
        (Mode.OBSERVE, "enforce", "enfroce", True),
    ],
)
async def test_the_nearest_annotation_counts(default: Mode, namespace: str, own: str, acts: bool) -> None:
    assert (left(default, namespace, own) == 1) is acts


async def test_a_pod_cannot_ask_for_less_than_its_namespace_where_the_policy_says_so() -> None:
    assert left(Mode.OBSERVE, "enforce", "observe", may_lower=False) == 1
    assert left(Mode.OBSERVE, "observe", "enforce", may_lower=False) == 1
    assert left(Mode.ENFORCE, "observe", "observe", may_lower=False) == 2


def test_a_namespace_is_switched_on_and_off_while_it_runs(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-space-mode")
    with kwok.nodes(2, gpus=8) as nodes:
        extender = start_extender(control_plane, space, mode="observe")
        extender.start_scheduler(space)
        for step, mode in enumerate(("enforce", None)):
            annotations = {"metadata": {"annotations": {"kaiwo.ai/mode": mode}}}
            api.request(
                "PATCH",
                f"/api/v1/namespaces/{space}",
                json=annotations,
                headers={"Content-Type": "application/merge-patch+json"},
            )
            seen: list[bool] = []

            def follows(step: int = step, mode: str | None = mode, seen: list[bool] = seen) -> bool:
                name = f"p{step}-{len(seen)}"
                api.create(gpu_pod(name, space, scheduler=space, selector=nodes.selector))
                seen.append(INDICES in bound(api, name, space)["metadata"].get("annotations", {}))
                return seen[-1] is (mode == "enforce")

            wait_for(follows)
