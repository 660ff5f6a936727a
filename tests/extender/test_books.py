"""The books of the fleet: what pods hold, over any order of events, and back to nothing when all are gone."""

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kopt.cluster.workloads.requests.pods import ask_of
from kopt.controllers.extender.node_list import NodeNames
from kopt.core.scheduling.placement import Ask, FleetNode
from kopt.core.units import GIB, Bytes
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.fleet import Fleet, Stage
from kopt.policies.placement.state import PlacementError

NVIDIA, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def node(name: str, gpus: int = 8, resource: str = NVIDIA, memory_gib: int = 80, mig: int = 0) -> dict[str, FleetNode]:
    offers = {resource: gpus} | ({MIG: mig} if mig else {})
    return {
        one: FleetNode(name, 64_000, Bytes(512 * GIB), count, "NVIDIA-A100", Bytes(memory_gib * GIB))
        for one, count in offers.items()
    }


def asking(gpus: int = 1, *, resource: str = NVIDIA, cpu: str = "1", **annotations: str) -> Ask:
    requests = {"cpu": cpu, "memory": "1Gi"} | ({resource: str(gpus)} if gpus else {})
    named = {f"kaiwo.ai/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return ask_of({"metadata": {"annotations": named}, "spec": {"containers": [{"resources": {"requests": requests}}]}})


def fleet_of(*offers: dict[str, FleetNode]) -> Fleet:
    fleet = Fleet()
    for one in offers:
        fleet.set_node(next(iter(one.values())).name, one)
    return fleet


def take(fleet: Fleet, uid: str, ask: Ask, *names: str) -> str | None:
    placement = fleet.choose(ask, NodeNames.of(names))
    if placement.choice.node is None:
        return None
    fleet.reserve(uid, ("ns", uid), ask, placement, 10.0)
    return placement.choice.node


def free(fleet: Fleet, name: str, resource: str = NVIDIA) -> list[int]:
    state = fleet.pools[resource].state
    return [int(milli) for milli in state.gpu_free_milli[state.index[name]]]


def test_two_reservations_never_share_a_gpu() -> None:
    fleet = fleet_of(node("a", 4))
    taken = [take(fleet, f"p{i}", asking(), "a") for i in range(5)]
    assert taken == ["a"] * 4 + [None]
    assert sorted(fleet.holdings[f"p{i}"].gpus for i in range(4)) == [(0,), (1,), (2,), (3,)]


def test_a_share_given_in_memory_depends_on_the_gpu() -> None:
    fleet = fleet_of(node("small", memory_gib=16), node("large", memory_gib=80))
    # 20,000 MiB do not fit into 16 GiB, and are a quarter of 80 GiB.
    assert take(fleet, "p", asking(0, gpu_memory="20000"), "small", "large") == "large"
    assert min(free(fleet, "large")) == 1000 - 245
    refused = fleet.choose(asking(0, gpu_memory="20000"), NodeNames.of(["small"])).choice.rejected
    assert refused == {Refusal.GPU_MEMORY: 1}


def test_slices_and_whole_gpus_are_pools_of_their_own_that_share_cpu() -> None:
    fleet = fleet_of(node("mixed", 2, mig=7))
    for number in range(7):
        assert take(fleet, f"slice-{number}", asking(resource=MIG, cpu="8"), "mixed") == "mixed"
    assert take(fleet, "slice-7", asking(resource=MIG, cpu="1"), "mixed") is None
    assert free(fleet, "mixed") == [1000, 1000]
    # 56 of 64 cores are taken by the slices.
    whole = fleet.choose(asking(cpu="9"), NodeNames.of(["mixed"]))
    assert whole.choice.rejected == {Refusal.CPU: 1}


def test_a_pod_keeps_its_gpus_while_its_node_is_away() -> None:
    fleet = fleet_of(node("a", 4))
    fleet.bound("p", ("ns", "p"), "a", asking(2), (1, 3))
    fleet.set_node("a", {})
    assert take(fleet, "q", asking(), "a") is None
    fleet.set_node("a", node("a", 4))
    assert free(fleet, "a") == [1000, 0, 1000, 0]


def test_a_pod_seen_before_its_node_is_counted_when_the_node_comes() -> None:
    fleet = fleet_of(node("b"))
    fleet.bound("p", ("ns", "p"), "a", asking(2), (0, 1))
    fleet.set_node("a", node("a", 4))
    assert free(fleet, "a")[:4] == [0, 0, 1000, 1000]


def test_a_pod_bound_without_indices_gets_those_reserved_for_it_else_the_emptiest() -> None:
    fleet = fleet_of(node("a", 4))
    fleet.bound("other", ("ns", "other"), "a", asking(), (0,))
    take(fleet, "p", asking(), "a")
    reserved = fleet.holdings["p"].gpus
    assert fleet.bound("p", ("ns", "p"), "a", asking(), None).gpus == reserved
    assert fleet.holdings["p"].stage is Stage.BOUND
    assert not set(fleet.bound("q", ("ns", "q"), "a", asking(), None).gpus) & {0, *reserved}


@pytest.mark.parametrize("named", [(0, 0), (99, 100), (1,), ()])
def test_indices_that_cannot_be_are_not_believed(named: tuple[int, ...]) -> None:
    fleet = fleet_of(node("a", 4))
    assert fleet.bound("p", ("ns", "p"), "a", asking(2), named).gpus == (0, 1)


def test_a_reservation_on_a_full_node_changes_nothing() -> None:
    fleet = fleet_of(node("a", 1))
    placement = fleet.choose(asking(), NodeNames.of(["a"]))
    fleet.reserve("p", ("ns", "p"), asking(), placement, 10.0)
    with pytest.raises(PlacementError):
        fleet.reserve("q", ("ns", "q"), asking(), placement, 10.0)
    assert free(fleet, "a") == [0]
    assert "q" not in fleet.holdings


def test_unknown_nodes_are_counted_and_refused_by_name() -> None:
    fleet = fleet_of(node("a", 1))
    names = NodeNames.of(["a", "new", "newer"])
    fleet.bound("p", ("ns", "p"), "a", asking(), (0,))
    choice = fleet.choose(asking(), names).choice
    assert choice.considered == 3
    assert choice.rejected == {Refusal.GPU_FREE: 1, Refusal.NO_SUCH_NODE: 2}
    assert fleet.refusals(asking(), names) == {"a": Refusal.GPU_FREE, "new": 1, "newer": 1}


SIZES = st.sampled_from(
    [
        asking(1),
        asking(2),
        asking(4),
        asking(0, gpu_fraction="0.5"),
        asking(0, gpu_fraction="0.3"),
        asking(0),
        asking(1, resource=MIG),
    ]
)
NODES = ("a", "b", "c")


class Books(RuleBasedStateMachine):
    """Nodes come, change and go; pods are reserved, bound (with, without and with wrong indices), released."""

    @initialize()
    def start(self) -> None:
        self.fleet, self.number, self.reserved_only = Fleet(), 0, True

    @rule(name=st.sampled_from(NODES), gpus=st.integers(0, 8), mig=st.integers(0, 7))
    def node_changes(self, name: str, gpus: int, mig: int) -> None:
        if any(one.node == name for one in self.fleet.holdings.values()):
            self.reserved_only = False
        self.fleet.set_node(name, node(name, gpus, mig=mig) if gpus else {})

    @rule(ask=SIZES)
    def reserve(self, ask: Ask) -> None:
        if ask.pool:
            self.number += 1
            take(self.fleet, f"p{self.number}", ask, *NODES)

    @rule(ask=SIZES, name=st.sampled_from(NODES), gpus=st.none() | st.lists(st.integers(0, 9), max_size=4))
    def bind(self, ask: Ask, name: str, gpus: list[int] | None) -> None:
        self.number += 1
        self.reserved_only = False
        self.fleet.bound(f"p{self.number}", ("ns", "p"), name, ask, None if gpus is None else tuple(gpus))

    @precondition(lambda self: self.fleet.holdings)
    @rule(data=st.data(), name=st.sampled_from(NODES))
    def bind_what_was_reserved(self, data: st.DataObject, name: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.fleet.holdings)))
        held = self.fleet.holdings[uid]
        if name != held.node:
            self.reserved_only = False
        self.fleet.bound(uid, held.pod, name, held.ask, None)

    @precondition(lambda self: self.fleet.holdings)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.fleet.release(data.draw(st.sampled_from(sorted(self.fleet.holdings))))

    @invariant()
    def never_more_promised_than_there_is(self) -> None:
        if self.reserved_only:
            for pool in self.fleet.pools.values():
                assert (pool.state.gpu_free_milli >= 0).all()

    def teardown(self) -> None:
        for uid in list(self.fleet.holdings):
            self.fleet.release(uid)
        for pool in self.fleet.pools.values():
            state = pool.state
            for name, row in state.index.items():
                count = self.fleet.nodes[name][pool.resource].gpus
                assert state.gpu_free_milli[row].tolist() == [1000] * count + [0] * (state.slots - count)
            np.testing.assert_array_equal(state.cpu_free_milli, state.cpu_milli)
            np.testing.assert_array_equal(state.memory_free_bytes, state.memory_bytes)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@given(st.dictionaries(st.sampled_from(["cpu", "memory", NVIDIA, MIG, "amd.com/gpu"]), st.integers(0, 9), max_size=4))
def test_a_pod_asks_for_its_largest_phase(amounts: dict[str, int]) -> None:
    """Init containers run before, sidecars beside: what the scheduler would count."""
    one = {"resources": {"requests": {name: str(amount) for name, amount in amounts.items()}}}
    sidecar = one | {"restartPolicy": "Always"}
    alone = ask_of({"metadata": {}, "spec": {"containers": [one]}})
    assert ask_of({"metadata": {}, "spec": {"containers": [one], "initContainers": [one]}}) == alone
    beside = ask_of({"metadata": {}, "spec": {"containers": [one], "initContainers": [sidecar]}})
    assert beside.units == {name: 2 * count for name, count in alone.units.items()}
    assert beside.request.cpu_milli == 2 * alone.request.cpu_milli == 2000 * amounts.get("cpu", 0)
