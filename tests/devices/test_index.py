"""The index of GPUs is what it would be if it were built from all that there is now, whatever came before, in whatever
order."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.resources import Key
from kopt.cluster.objects.custom.mig_strategy import MigStrategy
from kopt.cluster.objects.device_slices import DevicePool, Taint, mig_device_name, mig_gpus, whole_gpus
from kopt.cluster.workloads.requests.devices import DeviceRequest, ObservedClaim, PublishedSlice, read_slice
from kopt.controllers.devices.books import RESERVED_S, Books, SelectedSet, Selection
from kopt.controllers.devices.open_nodes import OpenNodes
from kopt.controllers.devices.sets import LinkedGpus, linked_gpus
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry

DRIVERS, NODES = ("gpu.nvidia.com", "other.nvidia.com"), ("a", "b", "c")
A30 = mig_geometry(find_gpu("a30"))
STRATEGY = MigStrategy("small", {}, {"1g.6gb": 100})
NAMES = ["gpu-0", "gpu-1", "gpu-2", mig_device_name(0, "1g.6gb", 0), mig_device_name(1, "2g.12gb", 2), "absent"]


def pool(driver: str, node: str, kind: int, generation: int) -> DevicePool:
    if kind == 0:
        made = mig_gpus(driver, node, 2, A30)
    elif kind == 1:
        made = DevicePool(driver, node, whole_gpus(3, "L40S", 48, uuid=[f"GPU-{node}-{at}" for at in range(3)]))
    else:
        made = mig_gpus(driver, node, 1, A30)
        made = DevicePool(driver, node, (made.devices[0].tainted(Taint("x", "NoSchedule")), *made.devices[1:]))
    return DevicePool(driver, node, made.devices, made.counters, generation)


def topology(node: str, a: int, b: int) -> LinkedGpus:
    gpus = [{"index": at, "name": "NVIDIA", "uuid": f"GPU-{node}-{at}"} for at in range(3)]
    links = [{"a": min(a, b), "b": max(a, b), "type": "NVLINK", "count": 4}] if a != b else []
    return linked_gpus({"metadata": {"name": node}, "spec": {"gpus": gpus, "links": links}})


class History:
    """What there is now, and the books that heard of each step."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slices: dict[Key, PublishedSlice] = {}
        self.claims: dict[Key, ObservedClaim] = {}
        self.links: dict[Key, LinkedGpus] = {}
        self.strategies: dict[str, MigStrategy] = {}
        self.selected: dict[str, tuple[float, Selection | SelectedSet]] = {}
        self.books = self._books()

    def _books(self) -> Books:
        return Books(lambda: self.now_s, self.strategies.get, self.links)

    def rebuilt(self) -> Books:
        """Claims first, slices last, each once."""
        books = self._books()
        for key, claim in self.claims.items():
            books.put_claim(key, claim)
        for made_for, (until_s, selection) in self.selected.items():
            if until_s >= self.now_s:
                books.index.put_selection(made_for, selection.node, selection.parts)
        for key, part in reversed(self.slices.items()):
            books.put_slice(key, part)
        return books

    def publish(self, driver: str, node: str, kind: int, generation: int, lost: int) -> None:
        """A slice may be late for ever."""
        for number, document in enumerate(pool(driver, node, kind, generation).slices()):
            if number != lost:
                self.put_slice(("", document["metadata"]["name"]), read_slice(document))

    def put_slice(self, key: Key, part: PublishedSlice | None) -> None:
        _put(self.slices, key, part)
        self.books.put_slice(key, part)

    def put_claim(self, key: Key, claim: ObservedClaim | None) -> None:
        _put(self.claims, key, claim)
        self.books.put_claim(key, claim)
        if claim is not None and claim.allocated:
            self.selected.pop(claim.made_for, None)

    def link(self, node: str, a: int, b: int) -> None:
        self.links["", node] = topology(node, a, b)
        self.books.touch(node)

    def expect(self, node: str, expected: bool) -> None:
        _put(self.strategies, node, STRATEGY if expected else None)
        self.books.touch()

    def select(self, request: DeviceRequest, made_for: str, nodes: frozenset[str]) -> None:
        selection = self.books.select(request, made_for, nodes.__contains__)
        taken = any(claim.allocated and claim.made_for == made_for for claim in self.claims.values())
        if selection is not None:
            assert selection.node in nodes
            self.selected.pop(made_for, None)
            if not taken:
                self.selected[made_for] = self.now_s + RESERVED_S, selection

    def forget(self, made_for: str) -> None:
        self.selected.pop(made_for, None)
        self.books.forget(made_for)

    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    def again(self, number: int) -> None:
        """An event that is delivered a second time."""
        for key in list(self.slices)[number : number + 1]:
            self.put_slice(key, self.slices[key])
        for each in list(self.claims)[number : number + 1]:
            self.put_claim(each, self.claims[each])


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    table.pop(key, None)
    if value is not None:
        table[key] = value


def state(books: Books) -> object:
    """All that choices go by."""
    books.settle()
    index = books.index
    numbers = {family: dict(index.numbers(family)) for family in index.families()}
    return dict(index.nodes()), numbers


REQUESTS = [
    *(DeviceRequest(DRIVERS[0], {"type": "gpu"}, count) for count in (1, 2, 3)),
    DeviceRequest(DRIVERS[0], {"type": "gpu", "productName": "L40S"}, 2),
    *(DeviceRequest(driver, {"profile": "1g.6gb"}) for driver in DRIVERS),
    DeviceRequest(DRIVERS[0], {"profile": "2g.12gb"}),
]
Step = Callable[[History], None]


def _step(method: Callable[..., None], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(*arguments).map(lambda values: lambda history: method(history, *values))


drivers, nodes, numbers = st.sampled_from(DRIVERS), st.sampled_from(NODES), st.integers(0, 2)
owners = st.sampled_from(["", "p/0", "p/1", "p/2", "p/3"])
claim_keys = st.tuples(st.just("team"), st.sampled_from("uvwxyz"))
allocated = st.lists(st.tuples(drivers, nodes, st.sampled_from(NAMES)), max_size=3).map(tuple)
claims = st.none() | st.builds(ObservedClaim, owners, allocated, st.just(""))
slice_keys = st.tuples(
    st.just(""), st.builds("{}-{}-{:02}".format, st.sampled_from(NODES), st.sampled_from(DRIVERS), st.integers(0, 1))
)
steps = st.one_of(
    _step(History.publish, drivers, nodes, numbers, st.integers(1, 2), st.sampled_from([0, 1, 9, 9, 9])),
    _step(History.put_slice, slice_keys, st.none()),
    _step(History.put_claim, claim_keys, claims),
    _step(History.link, nodes, numbers, numbers),
    _step(History.expect, nodes, st.booleans()),
    _step(
        History.select,
        st.sampled_from(REQUESTS),
        owners.filter(bool),
        st.frozensets(st.sampled_from(NODES), min_size=1),
    ),
    _step(History.forget, owners.filter(bool)),
    _step(History.wait, st.sampled_from([1, 5, 11])),
    _step(History.again, st.integers(0, 3)),
)


def published() -> History:
    """Nodes with both kinds of GPUs."""
    cluster = History()
    for kind, node in enumerate(NODES):
        cluster.publish(DRIVERS[0], node, kind, 1, lost=9)
    cluster.books.settle()
    return cluster


@given(st.lists(steps, max_size=25))
def test_the_index_is_what_it_would_be_if_built_anew(history: list[Step]) -> None:
    cluster = published()
    for number, step in enumerate(history):
        step(cluster)
        if number % 3 == 2:
            assert state(cluster.books) == state(cluster.rebuilt())
    assert state(cluster.books) == state(cluster.rebuilt())


@given(st.lists(steps, max_size=15), st.sampled_from(REQUESTS))
def test_what_is_gone_leaves_nothing(history: list[Step], request: DeviceRequest) -> None:
    cluster = published()
    for step in history:
        step(cluster)
    for key in list(cluster.slices):
        cluster.put_slice(key, None)
    for claim in list(cluster.claims):
        cluster.put_claim(claim, None)
    assert state(cluster.books) == ({}, {})
    assert cluster.books.select(request, "late", lambda _: True) is None


def test_a_claim_counts_as_it_comes_changes_and_goes() -> None:
    """That of a stranger, of which no selection was made here."""
    cluster = published()
    for names in (("gpu-0", "gpu-1"), ("gpu-1",), ("gpu-2", "gpu-0"), ()):
        allocated = tuple((DRIVERS[0], "b", name) for name in names)
        cluster.put_claim(("team", "u"), ObservedClaim("", allocated, "") if names else None)
        assert state(cluster.books) == state(cluster.rebuilt())
        taken = {gpu.uuid for gpu in cluster.books.index.node("b").gpus if gpu.is_taken}
        assert taken == {f"GPU-b-{name[-1]}" for name in names}


def test_a_slice_completes_its_pool_on_every_node() -> None:
    cluster = History()
    first, second = (
        PublishedSlice(DRIVERS[0], "rack", node, 1, 2, part.devices)
        for node in "ab"
        for part in map(read_slice, pool(DRIVERS[0], node, 1, 1).slices())
        if part is not None
    )
    for part, on in ((first, []), (second, ["a", "b"]), (None, [])):
        cluster.put_slice(("", f"rack-{'b' if part is not first else 'a'}"), part)
        assert state(cluster.books) == state(cluster.rebuilt())
        assert sorted(cluster.books.index.nodes()) == on


@pytest.mark.parametrize("generation", [1, 2])
def test_claims_may_come_before_the_slices_that_they_are_about(generation: int) -> None:
    cluster = History()
    cluster.put_claim(("team", "u"), ObservedClaim("p/0", ((DRIVERS[0], "a", "gpu-1"),), ""))
    cluster.publish(DRIVERS[0], "a", 1, generation, lost=9)
    selection = cluster.books.select(REQUESTS[1], "p/1", lambda _: True)
    assert isinstance(selection, SelectedSet)
    assert selection.gpus == ("GPU-a-0", "GPU-a-2")


def test_nodes_are_asked_again_once_they_have_changed() -> None:
    labels: dict[Key, tuple[dict[str, str], list[Mapping[str, Any]]]] = {("", "a"): ({"rack": "1"}, [])}
    open_nodes = OpenNodes(labels)  # type: ignore[arg-type]
    first, second = {"nodeSelector": {"rack": "1"}}, {"nodeSelector": {"rack": "2"}}
    assert [open_nodes.of(spec)("a") for spec in (first, second)] == [True, False]
    labels["", "a"] = {"rack": "2"}, []
    open_nodes.changed("a")
    assert [open_nodes.of(spec)("a") for spec in (first, second)] == [False, True]
    del labels["", "a"]
    open_nodes.changed("a")
    assert [open_nodes.of(spec)("a") for spec in (first, second)] == [False, False]
