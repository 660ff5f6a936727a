"""The books follow what kubelets give, in whatever order that becomes known."""

from dataclasses import replace

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.resources import Object
from kopt.cluster.workloads.placement.allocations import Allocations, Followed, NodeReport, allocation_report_of
from kopt.cluster.workloads.placement.pod_state import PodState, pod_state_of
from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.fleet import Fleet
from tests.extender.test_books import NVIDIA, fleet_of, free, node

STARTED = "2026-01-01T00:00:10Z"
STARTED_S = 1_767_225_610.0


def bound_pod(name: str, gpus: int, indices: str = "", started: str | None = STARTED) -> PodState:
    document: Object = {
        "metadata": {"uid": name, "name": name, "namespace": "ns", "annotations": {}},
        "spec": {"nodeName": "a", "containers": [{"resources": {"limits": {NVIDIA: str(gpus)}}}]},
        "status": {"phase": "Running", **({"startTime": started} if started else {})},
    }
    if indices:
        document["metadata"]["annotations"]["kaiwo.ai/gpu-indices"] = indices
    return pod_state_of(document, None, {})


def report(at_s: float = STARTED_S, **given_gpus: tuple[int, ...]) -> NodeReport:
    return NodeReport(
        at_s,
        {
            ("ns", name): {NVIDIA: DeviceAllocation("ns", name, NVIDIA, tuple(f"GPU-{gpu}" for gpu in gpus), gpus=gpus)}
            for name, gpus in given_gpus.items()
        },
    )


def book(fleet: Fleet, allocations: Allocations, pod: PodState) -> None:
    fleet.bound(pod.uid, pod.key, pod.node, pod.ask, allocations.slots(pod))
    allocations.make_room(pod)


def test_a_pod_is_booked_on_the_gpus_that_it_has_and_not_on_those_that_were_chosen() -> None:
    fleet = fleet_of(node("a", 4))
    allocations, pod = Allocations(fleet), bound_pod("p", 2, "0,1")
    book(fleet, allocations, pod)
    assert fleet.holdings["p"].gpus == (0, 1)
    allocations.report("a", report(p=(2, 3)))
    assert allocations.followed(pod, (0, 1)) is Followed.DIFFERS
    assert allocations.followed(pod, (3, 2)) is Followed.FOLLOWED
    book(fleet, allocations, pod)
    assert free(fleet, "a") == [WHOLE_GPU, WHOLE_GPU, 0, 0]


def test_a_report_from_before_the_pods_start_is_not_about_it() -> None:
    allocations, pod = Allocations(fleet_of(node("a", 4))), bound_pod("p", 2)
    allocations.report("a", report(STARTED_S - 1, p=(2, 3)))
    assert allocations.of(pod) is None
    assert allocations.of(replace(pod, started_s=None)) is None
    allocations.report("a", report(p=(2, 3)))
    assert allocations.of(pod) is not None
    assert allocations.of(bound_pod("p", 2, started=None)) is None


def test_a_pod_of_which_nothing_is_known_makes_room_for_one_that_is_there() -> None:
    fleet = fleet_of(node("a", 4))
    allocations = Allocations(fleet)
    early, late = bound_pod("early", 2, "0,1"), bound_pod("late", 2, "2,3", started=None)
    for pod in (early, late):
        book(fleet, allocations, pod)
    allocations.report("a", report(early=(2, 3)))
    book(fleet, allocations, early)
    # Without room made GPUs 0 and 1 would look free, and the node would be offered to a third pod.
    assert free(fleet, "a") == [0, 0, 0, 0]
    assert fleet.holdings["late"].gpus == (0, 1)
    # Its annotation still names the GPUs that the other one has.
    book(fleet, allocations, late)
    assert fleet.holdings["late"].gpus == (0, 1)
    allocations.forget(early)
    fleet.release("early")
    book(fleet, allocations, late)
    assert fleet.holdings["late"].gpus == (2, 3)


def test_shares_and_instances_are_told_apart_from_gpus() -> None:
    fleet = fleet_of(node("a", 4))
    allocations, pod = Allocations(fleet), bound_pod("p", 1, "0")
    for devices, gpus, verdict in (
        (("GPU-1::2",), (1,), Followed.PARTS),
        (("MIG-1",), (1,), Followed.PARTS),
        (("what",), None, Followed.UNKNOWN),
    ):
        given_devices = DeviceAllocation("ns", "p", NVIDIA, devices, gpus=gpus)
        allocations.report("a", NodeReport(STARTED_S, {("ns", "p"): {NVIDIA: given_devices}}))
        assert allocations.followed(pod, (0,)) is verdict
        assert allocations.slots(pod) == (0,)


def test_gpus_that_cannot_be_are_not_believed() -> None:
    fleet = fleet_of(node("a", 4))
    allocations, pod = Allocations(fleet), bound_pod("p", 2, "0,1")
    for wrong in ((-1, 2), (2, 4), (2, 2), (1, 2, 3), (3,)):
        allocations.report("a", report(p=wrong))
        book(fleet, allocations, pod)
        assert fleet.holdings["p"].gpus == (0, 1)


def test_what_an_agent_writes_is_read_without_its_claims() -> None:
    document = {
        "metadata": {"name": "a"},
        "status": {
            "observedAt": STARTED,
            "allocations": [
                {"namespace": "ns", "pod": "p", "resource": NVIDIA, "devices": ["GPU-1"], "gpus": [1]},
                {"namespace": "ns", "pod": "p", "resource": "gpu.nvidia.com", "devices": ["a/gpu-0"], "claim": "c"},
            ],
        },
    }
    read = allocation_report_of(document)
    assert read == report(p=(1,))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[int]]:
    """What was chosen and what was given, of as many GPUs, and the order in which kubelets tell of pods."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6).filter(lambda each: sum(each) <= 8))
    sets = []
    for _ in range(2):
        order, begin = draw(st.permutations(range(8))), 0
        sets.append([tuple(sorted(order[(begin := begin + size) - size : begin])) for size in sizes])
    return sets[0], sets[1], draw(st.permutations(range(len(sizes))))


@given(histories())
@settings(max_examples=examples(150), deadline=None)
def test_at_no_time_more_gpus_look_free_than_are(
    history: tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[int]],
) -> None:
    chosen, given_gpus, order = history
    fleet = fleet_of(node("a", 8))
    allocations = Allocations(fleet)
    pods = [bound_pod(f"p{at}", len(gpus), ",".join(map(str, gpus))) for at, gpus in enumerate(chosen)]
    for pod in pods:
        book(fleet, allocations, pod)
    told: dict[str, tuple[int, ...]] = {}
    for at in order:
        told[f"p{at}"] = given_gpus[at]
        allocations.report("a", report(**told))
        for pod in pods:
            book(fleet, allocations, pod)
        whole = sum(milli >= WHOLE_GPU for milli in free(fleet, "a"))
        assert whole <= 8 - sum(map(len, chosen))
    assert [fleet.holdings[pod.uid].gpus for pod in pods] == given_gpus
    for pod in pods:
        fleet.release(pod.uid)
    assert free(fleet, "a") == [WHOLE_GPU] * 8
