"""Half-placed gangs, deadlocks and releases: examples, and that nothing is released without need."""

from dataclasses import replace

import pytest
from benchmarked import benchmark_module
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.reason import Reason
from kopt.policies.gangs import (
    Gang,
    GangPod,
    GangSettings,
    GangSnapshot,
    deadlocks,
    half_placed,
    releases,
)

HOLD = GangSettings(60.0)
NODES = frozenset({"a", "b", "c"})


def gang(name: str, *nodes: str, minimum: int = 2, gpus: int = 1000, at_s: float = 0.0, **more: object) -> Gang:
    """A pod for each of ``nodes``; those of an empty name have none."""
    pods = tuple(
        GangPod(f"{name}-{index}", {"gpu": gpus}, node, at_s if node else 0.0, refused=not node)
        for index, node in enumerate(nodes)
    )
    values = {"nodes": NODES, "priority": 0, "created_s": at_s} | more
    return Gang(name, pods, minimum, **values)  # type: ignore[arg-type]


def snapshot(*gangs: Gang, free: dict[str, int] | None = None, now_s: float = 100.0) -> GangSnapshot:
    return GangSnapshot(gangs, {node: {"gpu": (free or {}).get(node, 0)} for node in NODES}, now_s)


def test_two_half_placed_gangs_are_a_deadlock_and_the_younger_gives_up() -> None:
    cluster = snapshot(gang("old", "a", "", at_s=0.0), gang("new", "b", "", at_s=20.0))
    (release,) = releases(cluster, HOLD)
    assert [each.name for each in release.gangs] == ["new"]
    assert release.beneficiary.name == "old"
    assert release.lost_gpu_s == 80.0
    assert release.reason.code == "GANG_DEADLOCK"


def test_what_is_reported_to_lose_less_gives_up_although_it_is_older() -> None:
    cluster = snapshot(gang("old", "a", "", at_s=0.0, loss_gpu_s=5.0), gang("new", "b", "", at_s=20.0))
    (release,) = releases(cluster, HOLD)
    assert [each.name for each in release.gangs] == ["old"]


@pytest.mark.parametrize(
    "others",
    [
        (gang("new", "b", "", at_s=50.0),),
        (gang("new", "b", "c"),),
        (gang("new", "b", "", minimum=1),),
        (gang("new", "", ""),),
        (),
    ],
    ids=["young", "complete", "above its minimum", "without nodes", "alone"],
)
def test_what_is_in_no_deadlock_is_left_alone(others: tuple[Gang, ...]) -> None:
    assert releases(snapshot(gang("old", "a", ""), *others), HOLD) == []


def test_room_that_comes_free_is_waited_for() -> None:
    assert releases(snapshot(gang("x", "a", ""), gang("y", "b", ""), free={"c": 1000}), HOLD) == []


def test_one_that_may_not_be_stopped_stays() -> None:
    spared = Reason("GANG_WRITING", "It writes a checkpoint.")
    cluster = snapshot(gang("old", "a", ""), gang("new", "b", "", at_s=20.0, spared=spared))
    (release,) = releases(cluster, HOLD)
    assert [each.name for each in release.gangs] == ["old"]
    both = snapshot(gang("old", "a", "", spared=spared), gang("new", "b", "", spared=spared))
    assert releases(both, HOLD) == []


def test_gangs_on_other_nodes_do_not_wait_for_each_other() -> None:
    left = gang("left", "a", "", nodes=frozenset({"a"}))
    right = gang("right", "b", "", nodes=frozenset({"b"}))
    assert deadlocks(half_placed(snapshot(left, right), HOLD), snapshot(left, right)) == []


def test_pods_beyond_a_minimum_go_first_where_they_lose_less() -> None:
    elastic = gang("elastic", "c", "c", minimum=1, at_s=90.0)
    (release,) = releases(snapshot(gang("x", "a", ""), gang("y", "b", ""), elastic), HOLD)
    assert release.gangs == ()
    assert [(each.name, len(each.pods)) for each in release.surplus] == [("elastic", 1)]


def test_pods_beyond_a_minimum_are_not_taken_twice() -> None:
    elastic = gang("elastic", "c", "c", minimum=1, at_s=90.0)
    cluster = replace(snapshot(gang("x", "a", ""), gang("y", "b", ""), elastic), kept_whole=frozenset({"elastic"}))
    (release,) = releases(cluster, HOLD)
    assert release.surplus == ()
    assert [each.name for each in release.gangs] == ["x"]


def test_other_resources_count() -> None:
    pods = (GangPod("x-0", {"gpu": 1000, "cpu": 4}, "a", 0.0), GangPod("x-1", {"gpu": 1000, "cpu": 4}, refused=True))
    needs_cpu = Gang("x", pods, 2, NODES)
    cluster = GangSnapshot((needs_cpu, gang("y", "b", "")), {node: {"gpu": 0, "cpu": 0} for node in NODES}, 100.0)
    # Without CPU on the other's node, what it gives up is of no use, and nothing waits for it.
    assert releases(cluster, HOLD) == []


NAMES = ("g0", "g1", "g2", "g3")


@st.composite
def clusters(draw: st.DrawFn) -> GangSnapshot:
    nodes = [f"n{index}" for index in range(draw(st.integers(1, 4)))]
    gangs = []
    for name in NAMES[: draw(st.integers(1, 4))]:
        size, gpus = draw(st.integers(1, 4)), draw(st.sampled_from((1000, 2000)))
        allowed = frozenset(draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True)))
        pods = []
        for index in range(size):
            node = draw(st.sampled_from(("", *sorted(allowed))))
            bound_s = draw(st.sampled_from((0.0, 30.0, 95.0))) if node else 0.0
            pods.append(GangPod(f"{name}-{index}", {"gpu": gpus}, node, bound_s, draw(st.booleans()) and not node))
        spared = Reason("GANG_WRITING", "") if draw(st.integers(0, 5)) == 0 else None
        loss = draw(st.sampled_from((None, 0.0, 10.0, 1e6)))
        gangs.append(Gang(name, tuple(pods), draw(st.integers(1, size)), allowed, 0, 0.0, loss, spared))
    free = {node: {"gpu": draw(st.sampled_from((0, 0, 1000)))} for node in nodes}
    return GangSnapshot(tuple(gangs), free, 100.0)


@given(clusters())
@settings(max_examples=400, deadline=None)
def test_nothing_is_released_without_need(cluster: GangSnapshot) -> None:
    decided = releases(cluster, HOLD)
    for release in decided:
        benchmark_module("gangs").check_release(cluster, release)
    names = [name for release in decided for name in release.deadlock]
    assert len(names) == len(set(names))


def test_random_snapshots_have_releases_and_none_is_false(capsys: pytest.CaptureFixture[str]) -> None:
    """The benchmark runs 100,000 of them."""
    assert benchmark_module("gangs").main(["1500"]) == 0
    count = int(capsys.readouterr().out.splitlines()[2].split("|")[2].strip())
    assert count >= 10


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="minimum of 0"):
        gang("x", "a", minimum=0)
    with pytest.raises(ValueError, match="one name"):
        snapshot(gang("x", "a"), gang("x", "b"))
    with pytest.raises(ValueError, match="hold"):
        GangSettings(-1)
