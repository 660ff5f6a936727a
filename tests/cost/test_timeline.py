"""What is charged and what is idle sum to the GPUs of each node, whatever the meter has missed."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kopt.core.cost.metering import Demand, Idle, MeteredNode, MeteredPod, Rule
from kopt.policies.cost import steady

from .histories import H100, Cluster

MINUTE = 60_000


def cluster(gpus: int = 8) -> Cluster:
    result = Cluster()
    result.nodes["n"] = MeteredNode("n", "node-n", gpus, H100)
    result.look()
    return result


def pod(uid: str, started_ms: int, demand: Demand | None = None) -> MeteredPod:
    return MeteredPod(uid, "node-n", demand or Demand(2), started_ms)


def used(world: Cluster, subject: str) -> int:
    return world.stored.usage(int(world.clock_ms), subject).get("n", 0)


def test_a_pod_is_charged_from_its_binding_to_its_end_and_the_rest_is_idle() -> None:
    world = cluster()
    world.passes(MINUTE)
    world.pods["a"] = pod("a", world.now_ms - 10_000)
    world.look()
    world.passes(MINUTE)
    world.pods["a"] = replace(world.pods["a"], ended_ms=world.now_ms - 20_000)
    for _ in range(3):
        world.look()
    assert used(world, "a") == 2000 * 50_000
    assert used(world, Idle.UNALLOCATED.subject) == 8000 * 2 * MINUTE - 2000 * 50_000


def test_what_ended_while_nobody_watched_is_charged_until_it_was_last_seen() -> None:
    world = cluster()
    world.pods["a"] = pod("a", world.now_ms)
    world.look()
    world.passes(MINUTE)
    world.look()
    world.crashes()
    world.passes(30 * MINUTE)
    del world.pods["a"]
    world.pods["b"] = pod("b", world.now_ms - 5 * MINUTE)
    world.look()
    assert used(world, "a") == 2000 * MINUTE
    assert used(world, "b") == 2000 * 5 * MINUTE, "when it was bound is known"
    assert used(world, Idle.UNOBSERVED.subject) == 8000 * 30 * MINUTE - 2000 * 5 * MINUTE
    assert used(world, Idle.UNALLOCATED.subject) == 6000 * MINUTE


def test_a_pod_that_survives_a_restart_is_charged_all_the_time() -> None:
    world = cluster()
    world.pods["a"] = pod("a", world.now_ms)
    world.look()
    world.crashes()
    world.passes(30 * MINUTE)
    world.look()
    world.passes(MINUTE)
    world.look()
    assert used(world, "a") == 2000 * 31 * MINUTE


def test_a_fraction_that_changes_live_is_charged_as_it_was() -> None:
    world = cluster(1)
    world.pods["a"] = pod("a", world.now_ms, Demand(1, 250, 250))
    world.look()
    world.passes(MINUTE)
    world.pods["a"] = replace(world.pods["a"], demand=Demand(1, 500, 100))
    world.look()
    world.passes(MINUTE)
    world.look()
    assert used(world, "a") == (250 + 500) * MINUTE


def test_shares_that_exceed_a_gpu_are_scaled_to_it() -> None:
    world = cluster(1)
    world.pods["a"] = pod("a", world.now_ms, Demand(1, 900, 100))
    world.pods["b"] = pod("b", world.now_ms, Demand(1, 100, 900))
    world.look()
    world.passes(MINUTE)
    world.look()
    assert (used(world, "a"), used(world, "b")) == (500 * MINUTE, 500 * MINUTE)


def test_seven_seventh_parts_are_a_gpu_and_halves_take_the_slice_that_nobody_can_use() -> None:
    world = cluster(2)
    for number in range(7):
        world.pods[f"s{number}"] = pod(f"s{number}", world.now_ms, Demand(1, 125, 143, (0,)))
    for name in "xy":
        world.pods[name] = pod(name, world.now_ms, Demand(1, 500, 429, (1,)))
    world.look()
    world.passes(MINUTE)
    world.look()
    assert used(world, Idle.UNALLOCATED.subject) == 0
    assert used(world, "x") == 500 * MINUTE
    assert {used(world, f"s{number}") // MINUTE for number in range(7)} == {142, 143}


@pytest.mark.parametrize("wrong_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_wrong_for_ten_minutes_costs_seconds(wrong_ms: int) -> None:
    world = cluster()
    for minute in range(60):
        world.wrong_ms = wrong_ms if 10 <= minute < 20 else 0
        world.passes(MINUTE)
        world.look()
    metered_ms = world.stored.capacity(int(world.clock_ms))["n"] / 8000
    assert abs(metered_ms - 60 * MINUTE) <= 60 * MINUTE * 0.001
    assert steady(1000.0, 1000.0 - 3_600_000, 100.0) > 1000.0, "it never goes back"


class Worlds(RuleBasedStateMachine):
    """Pods and nodes come, change and go; the meter crashes, is late, and has a wrong clock."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Cluster()
        self.count = 0

    @rule(gpus=st.integers(1, 4))
    def node_comes(self, gpus: int) -> None:
        self.count += 1
        name = f"n{self.count}"
        self.world.nodes[name] = MeteredNode(name, f"node-{name}", gpus, H100, self.world.now_ms)

    @rule(data=st.data(), watched=st.booleans())
    def node_goes(self, data: st.DataObject, watched: bool) -> None:
        if self.world.nodes:
            uid = data.draw(st.sampled_from(sorted(self.world.nodes)))
            name = self.world.nodes.pop(uid).name
            for pod_uid in [uid for uid, item in self.world.pods.items() if item.node == name]:
                del self.world.pods[pod_uid]
            if watched and self.world.meters is not None:
                self.world.departed[uid] = self.world.now_ms

    @rule(data=st.data(), gpus=st.integers(1, 4), closed=st.sampled_from([None, *Idle]))
    def node_is_cut_again(self, data: st.DataObject, gpus: int, closed: Idle | None) -> None:
        if self.world.nodes:
            uid = data.draw(st.sampled_from(sorted(self.world.nodes)))
            self.world.nodes[uid] = replace(self.world.nodes[uid], gpus=gpus, closed=closed)

    @rule(
        data=st.data(),
        count=st.integers(1, 5),
        memory=st.sampled_from([100, 125, 333, 500, 1000]),
        compute=st.integers(0, 1000),
        late_ms=st.integers(0, 2 * MINUTE),
        indices=st.lists(st.integers(0, 5), max_size=2, unique=True),
    )
    def pod_comes(
        self, data: st.DataObject, count: int, memory: int, compute: int, late_ms: int, indices: list[int]
    ) -> None:
        if self.world.nodes:
            self.count += 1
            node = data.draw(st.sampled_from(sorted(self.world.nodes)))
            demand = Demand(count, memory, compute, tuple(indices))
            uid = f"p{self.count}"
            self.world.pods[uid] = MeteredPod(uid, f"node-{node}", demand, self.world.now_ms - late_ms)

    @rule(data=st.data(), memory=st.integers(1, 1000))
    def fraction_changes(self, data: st.DataObject, memory: int) -> None:
        if self.world.pods:
            uid = data.draw(st.sampled_from(sorted(self.world.pods)))
            item = self.world.pods[uid]
            self.world.pods[uid] = replace(item, demand=replace(item.demand, memory_milli=memory))

    @rule(data=st.data(), how=st.sampled_from(["ended", "watched", "lost"]), early_ms=st.integers(-MINUTE, MINUTE))
    def pod_ends(self, data: st.DataObject, how: str, early_ms: int) -> None:
        if self.world.pods:
            uid = data.draw(st.sampled_from(sorted(self.world.pods)))
            if how == "ended":
                self.world.pods[uid] = replace(self.world.pods[uid], ended_ms=self.world.now_ms - early_ms)
                return
            del self.world.pods[uid]
            if how == "watched":
                self.world.departed[uid] = self.world.now_ms

    @rule(ms=st.integers(0, 20 * MINUTE), wrong_ms=st.sampled_from([0, 0, 0, -3_600_000, 3_600_000]))
    def time_passes(self, ms: int, wrong_ms: int) -> None:
        self.world.wrong_ms = wrong_ms
        self.world.passes(ms)

    @rule()
    def meter_crashes(self) -> None:
        self.world.crashes()

    @rule(times=st.integers(1, 3))
    def meter_looks(self, times: int) -> None:
        for _ in range(times):
            self.world.look()

    @invariant()
    def sums_close(self) -> None:
        until_ms = self.world.stored.metered_ms or 0
        used = {uid: milli_ms for uid, milli_ms in self.world.stored.usage(until_ms).items() if milli_ms}
        assert used == {uid: milli_ms for uid, milli_ms in self.world.stored.capacity(until_ms).items() if milli_ms}

    @invariant()
    def no_subject_is_charged_twice_at_a_time(self) -> None:
        by_subject: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for segment in self.world.stored.segments.values():
            end_ms = segment.end_ms if segment.end_ms is not None else 1 << 60
            assert end_ms >= segment.start_ms
            assert segment.milli > 0, "nothing is idle below 0"
            by_subject.setdefault((segment.node_uid, segment.subject), []).append((segment.start_ms, end_ms))
        for spans in by_subject.values():
            spans.sort()
            assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


TestWorlds = Worlds.TestCase
TestWorlds.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("rule_of", list(Rule))
def test_every_rule_is_printed(rule_of: Rule) -> None:
    assert "scaled down" in rule_of.sentence
