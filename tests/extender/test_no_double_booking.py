"""However calls come, and whoever is killed meanwhile: no GPU is given twice, no pod is lost."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from controlplane.api import Api, Object
from controlplane.kwok import Kwok, Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.extender.conftest import RunningExtender, gpu_pod

Start = Callable[..., RunningExtender]
INDICES = "kaiwo.ai/gpu-indices"
NUMBERS = count()


def bound_pods(api: Api, space: str) -> list[Object]:
    return [pod for pod in api.list("v1", "Pod", space) if pod["spec"].get("nodeName")]


def milli(pod: Object) -> int:
    return round(1000 * float(pod["metadata"].get("annotations", {}).get("kaiwo.ai/gpu-fraction", 1)))


def requested(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))


def assert_no_gpu_is_given_twice(pods: Iterable[Object]) -> None:
    """By the annotations of the pods as the API server has them, and by what they request of their nodes."""
    by_gpu: Counter[tuple[str, str]] = Counter()
    by_node: Counter[str] = Counter()
    for pod in pods:
        node = pod["spec"]["nodeName"]
        by_node[node] += requested(pod)
        for gpu in filter(None, pod["metadata"].get("annotations", {}).get(INDICES, "").split(",")):
            by_gpu[node, gpu] += milli(pod)
    assert max(by_gpu.values(), default=0) <= 1000, by_gpu
    assert max(by_node.values(), default=0) <= 8, by_node


def test_32_binds_at_once_never_book_a_gpu_twice(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    """The calls a scheduler gone mad would make: any pod to any node, all at the same time, nothing filtered before."""
    api = control_plane.api
    space = api.space("ext-binds")
    with kwok.nodes(2, gpus=8) as nodes:
        extender = start_extender(control_plane, space)

        @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            sizes=st.lists(st.sampled_from([1, 1, 1, 2, 4, 0.5, 0.3]), min_size=32, max_size=32),
            places=st.lists(st.integers(0, 1), min_size=32, max_size=32),
        )
        def never(sizes: list[float], places: list[int]) -> None:
            pods = [api.create(sized(f"p{next(NUMBERS)}", space, size)) for size in sizes]
            known(extender, pods, nodes)
            with ThreadPoolExecutor(32) as at_once:
                answers = list(
                    at_once.map(lambda one: bind(extender, *one), zip(pods, (nodes[i] for i in places), strict=True))
                )
            now = bound_pods(api, space)
            assert_no_gpu_is_given_twice(now)
            assert len(now) == sum(not answer["Error"] for answer in answers) > 0
            for answer in answers:
                assert not answer["Error"] or "has no room left" in answer["Error"]
            api.delete_all("v1", "Pod", space, gracePeriodSeconds=0)
            wait_for(lambda: not api.list("v1", "Pod", space))
            wait_for(lambda: extender.metric("kopt_extender_unconfirmed") == 0)

        never()


def sized(name: str, space: str, size: float) -> Object:
    """A pod that no scheduler looks at, so that only this test binds it."""
    whole = size >= 1
    annotations = {} if whole else {"kaiwo.ai/gpu-fraction": str(size)}
    return gpu_pod(name, space, int(size) if whole else 0, scheduler="nobody", annotations=annotations)


def known(extender: RunningExtender, pods: list[Object], nodes: Nodes) -> None:
    """The informer has told the extender of the last pod: a bind to a node that does not exist is refused by name."""
    last = pods[-1]
    wait_for(lambda: "has no room" in bind(extender, last, "nowhere")["Error"])


def bind(extender: RunningExtender, pod: Object, node: str) -> Object:
    meta = pod["metadata"]
    call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return dict(extender.http.post("/bind", json=call).json())


@pytest.mark.long
def test_the_same_pod_bound_32_times_at_once_is_bound_once(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-again")
    with kwok.nodes(1, gpus=8) as nodes:
        extender = start_extender(control_plane, space)
        pod = api.create(sized("one", space, 2))
        known(extender, [pod], nodes)
        with ThreadPoolExecutor(32) as at_once:
            answers = list(at_once.map(lambda _: bind(extender, pod, nodes[0]), range(32)))
        assert any(not answer["Error"] for answer in answers)
        assert api.get("v1", "Pod", "one", space)["metadata"]["annotations"][INDICES].count(",") == 1
        why = extender.explain(space, "one")
        assert why["node"] == nodes[0]


@pytest.mark.long
def test_a_pod_made_anew_under_its_name_is_not_bound_for_the_old_one(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-anew")
    with kwok.nodes(1, gpus=8) as nodes:
        extender = start_extender(control_plane, space)
        pod = api.create(sized("one", space, 1))
        known(extender, [pod], nodes)
        stale = pod | {"metadata": pod["metadata"] | {"uid": str(uuid.uuid4())}}
        answer = bind(extender, stale, nodes[0])
        assert "Precondition failed: UID" in answer["Error"]
        assert not api.get("v1", "Pod", "one", space)["spec"].get("nodeName")
        assert not bind(extender, pod, nodes[0])["Error"]


def test_a_burst_fills_every_gpu_once(control_plane: ControlPlane, kwok: Kwok, start_extender: Start) -> None:
    api = control_plane.api
    space = api.space("ext-burst")
    with kwok.nodes(10, gpus=8) as nodes:
        extender = start_extender(control_plane, space)
        extender.start_scheduler("ext-burst")
        with ThreadPoolExecutor(8) as several:
            list(
                several.map(
                    lambda i: api.create(gpu_pod(f"p{i}", space, scheduler="ext-burst", selector=nodes.selector)),
                    range(90),
                )
            )
        wait_for(lambda: len(bound_pods(api, space)) == 80)
        pods = bound_pods(api, space)
        assert_no_gpu_is_given_twice(pods)
        assert all(INDICES in pod["metadata"]["annotations"] for pod in pods)
        # What waits goes on as soon as there is room.
        for pod in pods[:10]:
            api.delete("v1", "Pod", pod["metadata"]["name"], space, gracePeriodSeconds=0)
        wait_for(lambda: len(bound_pods(api, space)) == 80)
        assert_no_gpu_is_given_twice(bound_pods(api, space))


@pytest.mark.long
def test_two_schedulers_with_one_extender_never_overcommit_a_node(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    """Each has a cache of its own and does not see what the other has just promised."""
    api = control_plane.api
    space = api.space("ext-two")
    with kwok.nodes(5, gpus=8) as nodes:
        extender = start_extender(control_plane, space)
        for name in ("ext-two-a", "ext-two-b"):
            extender.start_scheduler(name)
        with ThreadPoolExecutor(8) as several:
            list(
                several.map(
                    lambda i: api.create(
                        gpu_pod(f"p{i}", space, 1 + i % 3, scheduler=f"ext-two-{'ab'[i % 2]}", selector=nodes.selector)
                    ),
                    range(60),
                )
            )
        wait_for(lambda: sum(map(requested, bound_pods(api, space))) >= 38)
        assert_no_gpu_is_given_twice(bound_pods(api, space))
        assert extender.metric('kopt_extender_bindings_total{reason="no_room"}') == 0
