"""The books of devices: nothing is selected twice, and only what is understood is selected at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.mig_strategy import MigStrategy, StrategyError, read_strategy
from kopt.cluster.objects.device_slices import DevicePool, Taint, mig_gpus, whole_gpus
from kopt.cluster.workloads.requests.devices import (
    ObservedClaim,
    device_request,
    only_request,
    read_claim,
    read_slice,
)
from kopt.controllers.devices.books import RESERVED_S, Books, Selection
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.policies.partitions.layouts import layouts_of

H100 = mig_geometry(find_gpu("h100-80gb"))
DRIVER = "gpu.nvidia.com"
PROFILES = [profile.name for profile in H100.profiles]
CLASS: Object = {"spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Cluster:
    """What informers would have."""

    def __init__(self, *pools: DevicePool, expects: dict[str, int] | None = None) -> None:
        documents = [document for pool in pools for document in pool.slices()]
        read = {("", document["metadata"]["name"]): read_slice(document) for document in documents}
        self.clock = Clock()
        strategy = MigStrategy("test", {}, expects) if expects else None
        self.books = Books(self.clock, lambda _: strategy)
        for key, part in read.items():
            self.books.put_slice(key, part)

    def select(self, profile: str, key: str = "uid/gpu") -> Selection | None:
        request = device_request(CLASS, written(profile))
        assert request is not None
        return self.books.select(request, key, lambda _: True)

    def allocate(self, key: str, device: str, node: str = "a") -> None:
        self.books.put_claim(("team", key), ObservedClaim(key, ((DRIVER, node, device),), ""))


def written(profile: str = "", *further: str) -> Object:
    wanted = [f'device.attributes["{DRIVER}"].profile == "{profile}"'] if profile else []
    selectors = [{"cel": {"expression": text}} for text in (*wanted, *further)]
    return {"name": "gpu", "exactly": {"deviceClassName": "mig", "selectors": selectors}}


def h100s(node: str = "a", count: int = 2) -> DevicePool:
    return mig_gpus(DRIVER, node, count, H100)


@given(st.lists(st.tuples(st.sampled_from(PROFILES), st.booleans()), max_size=30))
def test_what_is_selected_always_fits_with_all_that_is_there(requests: list[tuple[str, bool]]) -> None:
    """Whether the claim was allocated already or not."""
    cluster, layouts = Cluster(h100s()), layouts_of(H100)
    for number, (profile, is_allocated) in enumerate(requests):
        key = f"pod-{number}/gpu"
        before = cluster.books.instances()
        selection = cluster.select(profile, key)
        after = cluster.books.instances()
        if selection is None:
            wanted = PROFILES.index(profile)
            room = [layouts.capacity[layouts.number(gpu) or 0, wanted] for gpu in before.values()]
            assert not any(room), "there is room"
            continue
        assert all(layouts.number(gpu) is not None for gpu in after.values())
        assert sum(map(len, after.values())) == sum(map(len, before.values())) + 1
        if is_allocated:
            name = f"gpu-{selection.gpu[-1]}-mig-{profile.replace('.', '')}-{selection.start}"
            cluster.allocate(key, name)
            assert cluster.books.instances() == after


@given(st.sampled_from(PROFILES), st.sampled_from(PROFILES), st.integers(0, 722))
def test_what_a_strategy_expects_keeps_its_room(expected: str, requested: str, layout: int) -> None:
    """On one GPU, in whatever layout: no other start leaves room for more of the profile that is expected."""
    layouts, wanted, profile = layouts_of(H100), PROFILES.index(expected), PROFILES.index(requested)
    cluster = Cluster(h100s(count=1), expects={expected: 100})
    for number, (instance, start) in enumerate(layouts.layouts[layout]):
        cluster.allocate(f"{number}/gpu", f"gpu-0-mig-{PROFILES[instance].replace('.', '')}-{start}")
    options = [option for option in layouts.following[layout, profile] if option >= 0]
    selection = cluster.select(requested)
    assert (selection is not None) is bool(options)
    if selection is not None:
        after = layouts.number([*layouts.layouts[layout], (profile, selection.start)])
        assert layouts.capacity[after, wanted] == max(layouts.capacity[option, wanted] for option in options)


@pytest.mark.parametrize(
    ("labels", "is_selected"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, True),
        ({"gpu.nvidia.com/class": "H100"}, True),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, False),
        ({}, False),
    ],
)
def test_a_class_stands_for_the_product(labels: dict[str, str], is_selected: bool) -> None:
    assert MigStrategy("inference", {"gpu.nvidia.com/class": "H100"}, {}).selects(labels) is is_selected


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([{"1g.10gb": "60%"}, {"2g.20gb": 20}], "add up to 80 %"),
        ([{"1g.11gb": "100%"}], "nearest: 1g.10gb, 1g.12gb"),
        ([{"half": "100%"}], "nearest: 1g.10gb"),
        ([{"1g.10gb": "50%"}, {"1g.18gb": "50%"}], "no GPU model has all of these profiles"),
        ([{"1g.10gb": "many"}], "write a percentage"),
        ([], "add up to 0 %"),
    ],
)
def test_a_strategy_that_cannot_be_followed_says_why(profiles: list[Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        read_strategy({"spec": {"partitionStrategy": {"preferredProfiles": profiles}}})


def test_what_was_allocated_counts_and_not_what_was_selected() -> None:
    cluster = Cluster(h100s(count=1))
    selection = cluster.select("3g.40gb")
    assert selection is not None
    other = 0 if selection.start else 4
    cluster.allocate("uid/gpu", f"gpu-0-mig-3g40gb-{other}")
    assert cluster.books.instances() == {("a", "GPU-a-0"): [(PROFILES.index("3g.40gb"), other)]}


def test_a_selection_that_is_not_allocated_ends() -> None:
    cluster = Cluster(h100s(count=1))
    assert cluster.select("7g.80gb", "first/gpu")
    assert cluster.select("7g.80gb", "second/gpu") is None
    cluster.clock.now_s = RESERVED_S + 1
    assert cluster.select("7g.80gb", "second/gpu")


def test_a_selection_of_another_replica_counts() -> None:
    first, second = Cluster(h100s(count=1)), Cluster(h100s(count=1))
    selection = first.select("7g.80gb")
    assert selection is not None
    text = f'{{"node": "a", "gpu": "{selection.gpu}", "profile": "7g.80gb", "start": 0}}'
    second.books.observe(ObservedClaim("uid/gpu", (), text))
    assert second.select("1g.10gb", "other/gpu") is None
    second.books.observe(ObservedClaim("", (), text.replace("7g.80gb", "1g.10gb")))
    for nonsense in ("[]", "{", '{"node": 1}', '{"node": "a", "gpu": "x", "profile": "9g", "start": -1}'):
        second.books.observe(ObservedClaim("third/gpu", (), nonsense))


def test_an_incomplete_pool_and_an_older_generation_are_not_used() -> None:
    cluster = Cluster(h100s())
    cluster.books.put_slice(("", f"a-{DRIVER}-00"), None)
    assert cluster.select("1g.10gb") is None
    older = Cluster(DevicePool(DRIVER, "a", h100s().devices, h100s().counters, generation=1))
    (newer,) = DevicePool(DRIVER, "a", whole_gpus(1, "H100", 80), generation=2).slices()
    part = read_slice(newer)
    assert part is not None
    older.books.put_slice(("", "newer"), part)
    assert older.select("1g.10gb") is None


def test_gpus_that_somebody_has_cut_or_tainted_are_left_alone() -> None:
    pool = h100s(count=1)
    assert Cluster(DevicePool(DRIVER, "a", pool.devices[:3], pool.counters)).select("1g.10gb") is None
    tainted = (pool.devices[0].tainted(Taint("ecc", "NoSchedule")), *pool.devices[1:])
    assert Cluster(DevicePool(DRIVER, "a", tainted, pool.counters)).select("1g.10gb") is None
    noted = (pool.devices[0].tainted(Taint("ecc", "None")), *pool.devices[1:])
    assert Cluster(DevicePool(DRIVER, "a", noted, pool.counters)).select("1g.10gb")


def test_a_whole_gpu_and_instances_share_the_books() -> None:
    cluster = Cluster(h100s())
    cluster.allocate("x/gpu", "gpu-0")
    selection = cluster.select("1g.10gb")
    assert selection is not None
    assert selection.gpu == "GPU-a-1"
    whole = device_request(CLASS, written("", f'device.attributes["{DRIVER}"].type == "gpu"'))
    assert whole is not None
    assert cluster.books.select(whole, "y/gpu", lambda _: True) is None


@pytest.mark.parametrize(
    "more",
    [
        f'device.attributes["{DRIVER}"].index > 3',
        f'device.attributes["{DRIVER}"].profile == "1g.10gb" || true',
        'device.driver == "gpu.amd.com"',
        f'device.attributes["{DRIVER}"].profile == "2g.20gb"',
        "size('&&') == 2",
    ],
)
def test_what_is_not_understood_is_left_as_it_was_written(more: str) -> None:
    assert device_request(CLASS, written("1g.10gb")) is not None
    assert device_request(CLASS, written("1g.10gb", more)) is None


@pytest.mark.parametrize(
    "change",
    [{"allocationMode": "All"}, {"adminAccess": True}, {"capacity": {"requests": {"memory": "1Gi"}}}],
)
def test_only_a_claim_for_devices_of_its_own_is_given_a_choice(change: dict[str, Any]) -> None:
    request = written("1g.10gb")
    claim = {"spec": {"devices": {"requests": [request]}}}
    assert only_request(claim) is not None
    request["exactly"] |= change
    assert only_request(claim) is None
    assert only_request({"spec": {"devices": {"requests": [written(), written()]}}}) is None


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda each: (
            st.lists(each)
            | st.dictionaries(
                st.sampled_from(["metadata", "spec", "status", "allocation", "devices", "results", "requests", "pool"]),
                each,
            )
        ),
        max_leaves=15,
    )
)
def test_nothing_in_a_document_makes_reading_raise(document: Any) -> None:
    read_claim({"metadata": document, "status": document, "spec": document})
    read_slice({"spec": document})
    only_request({"spec": document})
