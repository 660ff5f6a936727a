"""In any order of events nothing but a download's own success makes a copy ready, one Job at a time works on it,
nothing that is used is taken away, and what can be mended is tried again for ever."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.decision import Mode
from kopt.core.staging.manifest import Trouble
from kopt.core.staging.staged_data import CLAIM, ClaimFolder, Copy, DataPhase, DataSpec, NodeCache, StagedData, User
from kopt.policies.staging.cache import Cached, over_budget, to_evict
from kopt.policies.staging.copies import Run, Step, Verb
from kopt.policies.staging.decide import DataSnapshot, decide, is_ready
from kopt.policies.staging.holding import DataWorkload, Hold, hold_for
from kopt.policies.staging.nodes import CacheNode, Gang, choose_nodes, copies_needed
from kopt.policies.staging.rules import StagingRules

RULES = StagingRules()
USER = User("Job", "train", "u1")
CLAIMED = DataSpec("s3://bucket/data", ClaimFolder("claim", "data"))
CACHED = DataSpec("s3://bucket/data", NodeCache())


class World:
    """One StagedData, the Job that works on each copy of it, and what is truly on the disks."""

    def __init__(self, spec: DataSpec, nodes: list[str]) -> None:
        self.data = StagedData("team", "tokens", "uid", 1, spec)
        self.nodes, self.runs, self.now_s = nodes, dict[str, Run](), 1000.0
        self.users: tuple[User, ...] = ()
        self.whole: dict[str, bool] = {}
        """By place: whether its copy is complete; absent where nothing is."""
        self.free = False

    def step(self, **more: bool) -> None:
        nodes = tuple(CacheNode(one) for one in self.nodes)
        known = DataSnapshot(self.data, dict(self.runs.items()), self.users, nodes=nodes, **more)
        outcome = decide(known, self.now_s, RULES)
        for order in outcome.orders:
            run = self.runs.get(order.location)
            if order.step is Step.END:
                assert run is not None
                assert not run.ended
                self.runs.pop(order.location)
            else:
                assert run is None or run.ended, "two Jobs for one copy"
                assert not (order.verb is Verb.REMOVE and self.users), "a copy that is used is taken away"
                if order.verb is Verb.STAGE:
                    self.whole.setdefault(order.location, False)
                self.runs[order.location] = Run(order.location, order.verb, order.attempt, self.data.generation)
        self.data, self.free = outcome.data, outcome.free
        for copy in self.data.copies:
            if copy.phase is DataPhase.READY:
                assert self.whole.get(copy.location), "what is not whole is taken for complete"
        if self.free:
            assert not self.whole, "something is left where nobody looks any more"

    def end(self, place: str, reason: Trouble | None, *, silent: bool) -> None:
        run = self.runs.get(place)
        if run is None or run.ended:
            return
        ok = reason is None and not silent
        if ok and run.verb is Verb.STAGE:
            self.whole[place] = True
        elif ok:
            self.whole.pop(place, None)
        elif run.verb is Verb.REMOVE:
            self.whole[place] = False
        self.runs[place] = replace(
            run,
            ended=True,
            ok=ok,
            reason=reason,
            ended_at_s=self.now_s,
            digest="d" if ok and run.verb is Verb.STAGE else "",
        )

    def lose(self, node: str) -> None:
        if node in self.nodes:
            self.nodes.remove(node)
            self.runs.pop(node, None)
            self.whole.pop(node, None)


EVENTS = st.one_of(
    st.tuples(
        st.just("end"), st.sampled_from([CLAIM, "a", "b", "c"]), st.sampled_from([None, None, *Trouble]), st.booleans()
    ),
    st.tuples(st.just("wait"), st.floats(0, 1000)),
    st.tuples(st.just("use"), st.booleans()),
    st.tuples(st.just("evict")),
    st.tuples(st.just("delete")),
    st.tuples(st.just("change")),
    st.tuples(st.just("forget"), st.sampled_from([CLAIM, "a", "b", "c"])),
    st.tuples(st.just("lose"), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("again"), st.text("xy", min_size=1, max_size=2)),
)


def happen(world: World, event: tuple[object, ...]) -> bool:
    """Whether the copy has to make room now."""
    match event:
        case ("end", str(place), reason, bool(silent)):
            world.end(place, reason if isinstance(reason, Trouble) else None, silent=silent)
        case ("wait", float(seconds)):
            world.now_s += seconds
        case ("use", bool(used)):
            world.users = (USER,) if used else ()
        case ("delete",):
            world.data = replace(world.data, deleting=True)
        case ("change",):
            world.data = replace(world.data, generation=world.data.generation + 1)
        case ("forget", str(place)):
            if place in world.runs and world.runs[place].ended:
                world.runs.pop(place)
        case ("lose", str(node)):
            world.lose(node)
        case ("again", str(text)):
            world.data = replace(world.data, again=text)
    return event[0] == "evict"


@given(st.sampled_from([CLAIMED, CACHED]), st.lists(EVENTS, max_size=40))
def test_whatever_happens_ready_means_complete_and_one_job_works_at_a_time(
    spec: DataSpec, events: list[tuple[object, ...]]
) -> None:
    world = World(spec, ["a", "b", "c"])
    for event in events:
        world.step(evict=happen(world, event))


@given(st.sampled_from([CLAIMED, CACHED]), st.lists(EVENTS, max_size=30))
def test_once_all_goes_well_it_becomes_ready_or_is_gone(spec: DataSpec, events: list[tuple[object, ...]]) -> None:
    world = World(spec, ["a", "b", "c"])
    for event in events:
        world.step(evict=happen(world, event))
    if isinstance(spec.destination, NodeCache):
        world.nodes = world.nodes or ["d"]
    world.users = () if world.data.deleting else (USER,)
    for number in range(8):
        world.data = replace(world.data, again=f"again {number}")
        world.now_s += 1000
        world.step()
        for place in list(world.runs):
            world.end(place, None, silent=False)
    world.step()
    assert world.free if world.data.deleting else world.data.phase is DataPhase.READY


@given(st.sampled_from(list(Trouble)))
def test_a_failure_is_tried_again_after_its_pause_and_not_before(reason: Trouble) -> None:
    world = World(CLAIMED, [])
    world.step()
    world.end(CLAIM, reason, silent=False)
    world.step()
    (copy,) = world.data.copies
    assert (copy.reason, copy.failures) == (reason, 1)
    pause_s = RULES.pause_s(reason, 1)
    assert (pause_s is None) == (reason in (Trouble.BAD_REQUEST, Trouble.BAD_NAME))
    if pause_s is None:
        world.now_s += 1e9
        world.step()
        assert world.runs[CLAIM].ended
        return
    world.now_s += pause_s - 1
    world.step()
    assert world.runs[CLAIM].attempt == 1
    world.now_s += 2
    world.step()
    assert (world.runs[CLAIM].attempt, world.runs[CLAIM].ended) == (2, False)


def test_a_node_whose_clock_is_ahead_delays_no_new_try() -> None:
    data = StagedData("team", "tokens", "uid", 1, CLAIMED, copies=(Copy(attempts=1, generation=1, removed=False),))
    run = Run(CLAIM, Verb.STAGE, 1, 1, ended=True, reason=Trouble.UNREACHABLE, ended_at_s=90_000.0)
    (copy,) = decide(DataSnapshot(data, {CLAIM: run}, (USER,)), 5000.0, RULES).data.copies
    assert copy.retry_at_s == 5000.0 + RULES.first_pause_s


def test_the_success_of_an_older_job_or_of_one_without_words_is_none() -> None:
    data = StagedData(
        "team", "tokens", "uid", 2, CLAIMED, copies=(Copy(attempts=3, failed_attempt=3, failures=1, removed=False),)
    )
    for run in (
        Run(CLAIM, Verb.STAGE, 2, 2, ended=True, ok=True, digest="d"),
        Run(CLAIM, Verb.STAGE, 4, 1, ended=True, ok=True, digest="d"),
        Run(CLAIM, Verb.STAGE, 4, 2, ended=True, ok=True, digest=""),
        Run(CLAIM, Verb.REMOVE, 4, 2, ended=True, ok=True, digest="d"),
    ):
        assert decide(DataSnapshot(data, {CLAIM: run}, (USER,)), 5000.0, RULES).data.phase is not DataPhase.READY
    good = Run(CLAIM, Verb.STAGE, 4, 2, ended=True, ok=True, digest="d")
    assert decide(DataSnapshot(data, {CLAIM: good}, (USER,)), 5000.0, RULES).data.phase is DataPhase.READY


def test_a_download_for_another_spec_is_ended_first() -> None:
    world = World(CLAIMED, [])
    world.step()
    world.data = replace(world.data, generation=2)
    world.step()
    assert world.runs == {}
    world.step()
    assert (world.runs[CLAIM].generation, world.runs[CLAIM].attempt) == (2, 2)


def test_a_copy_stays_on_a_node_that_takes_nothing_new() -> None:
    ready = Copy("a", DataPhase.READY, attempts=1, generation=1, digest="d", removed=False)
    data = StagedData("team", "tokens", "uid", 1, CACHED, copies=(ready,))
    nodes = (CacheNode("a", fits=False), CacheNode("b"))
    outcome = decide(DataSnapshot(data, {}, (USER,), nodes=nodes), 5000.0, RULES)
    assert ready in outcome.data.copies
    assert [(one.location, one.verb) for one in outcome.orders] == [("b", Verb.STAGE)]


def test_a_copy_that_hangs_on_a_node_that_is_down_holds_nobody_whose_data_is_elsewhere() -> None:
    hanging = Copy("a", DataPhase.STAGING, attempts=1, generation=1, removed=False)
    ready = Copy("b", DataPhase.READY, attempts=1, generation=1, digest="d", removed=False)
    data = StagedData("team", "tokens", "uid", 1, CACHED, copies=(hanging, ready))
    down, up = CacheNode("a", fits=False), CacheNode("b")
    known = DataSnapshot(data, {"a": Run("a", Verb.STAGE, 1, 1)}, (USER,), nodes=(down, up))
    assert is_ready(known)
    assert not is_ready(replace(known, nodes=(down, up, CacheNode("c")), gangs=(Gang(2, 0), Gang(2, 1)))), "of two"
    assert not is_ready(replace(known, data=replace(data, copies=(replace(ready, location="a"),)))), (
        "nobody may go there"
    )
    assert not is_ready(replace(known, data=replace(data, generation=2)))


def test_a_node_that_was_set_up_anew_under_its_old_name_has_no_copy() -> None:
    ready = Copy("a", DataPhase.READY, attempts=1, generation=1, digest="d", removed=False, machine="1")
    data = StagedData("team", "tokens", "uid", 1, CACHED, copies=(ready,))
    run = Run("a", Verb.STAGE, 1, 1, ended=True, ok=True, digest="d")
    known = DataSnapshot(data, {"a": run}, (USER,), nodes=(CacheNode("a", machine="1"),))
    assert is_ready(known)
    assert decide(known, 5000.0, RULES).data.copies[0].phase is DataPhase.READY
    anew = replace(known, nodes=(CacheNode("a", machine="2"),))
    assert not is_ready(anew)
    outcome = decide(anew, 5000.0, RULES)
    (copy,) = outcome.data.copies
    assert (copy.phase, copy.machine, outcome.lost) == (DataPhase.WAITING, "2", ("a",))
    assert [(one.location, one.verb) for one in outcome.orders] == [("a", Verb.STAGE)]
    assert outcome.orders[0].attempt > run.attempt
    again = decide(replace(anew, data=outcome.data), 5001.0, RULES)
    assert (again.data.copies[0].phase, again.lost) == (DataPhase.WAITING, ()), "the other's Job proves nothing here"


@pytest.mark.parametrize(("before", "now"), [("", "1"), ("1", ""), ("1", "1")])
def test_a_copy_stays_where_nothing_tells_of_another_machine(before: str, now: str) -> None:
    ready = Copy("a", DataPhase.READY, attempts=1, generation=1, digest="d", removed=False, machine=before)
    data = StagedData("team", "tokens", "uid", 1, CACHED, copies=(ready,))
    known = DataSnapshot(data, {}, (USER,), nodes=(CacheNode("a", machine=now),))
    assert is_ready(known)
    assert decide(known, 5000.0, RULES).data.copies == (replace(ready, machine=now or before),)


def test_a_download_that_is_under_way_as_its_machine_is_exchanged_goes_on() -> None:
    staging = Copy("a", DataPhase.STAGING, attempts=1, generation=1, removed=False, machine="1")
    data = StagedData("team", "tokens", "uid", 1, CACHED, copies=(staging,))
    run = Run("a", Verb.STAGE, 1, 1)
    outcome = decide(DataSnapshot(data, {"a": run}, (USER,), nodes=(CacheNode("a", machine="2"),)), 5000.0, RULES)
    assert (outcome.data.copies[0].machine, outcome.data.copies[0].attempts, outcome.orders) == ("2", 1, ())


def test_a_copy_that_is_being_taken_away_is_not_ready_whatever_its_status_says() -> None:
    ready = Copy(attempts=3, phase=DataPhase.READY, generation=1, digest="d", removed=False)
    known = DataSnapshot(StagedData("team", "tokens", "uid", 1, CLAIMED, copies=(ready,)), {}, (USER,))
    assert is_ready(known)
    for attempt, ended in itertools.product((4, 2), (False, True)):
        run = Run(CLAIM, Verb.REMOVE, attempt, 1, ended=ended, ok=True)
        assert is_ready(replace(known, runs={CLAIM: run})) is (attempt == 2)


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1e6), st.booleans())), st.integers(0, 500))
def test_what_is_used_stays_and_what_was_used_longest_ago_goes_first(
    copies: list[tuple[int, float, bool]], needed: int
) -> None:
    cached = [Cached(("team", str(n)), *one) for n, one in enumerate(copies)]
    gone = to_evict(cached, needed)
    assert not any(one.in_use for one in gone)
    unused = sum(one.bytes for one in cached if not one.in_use)
    assert sum(one.bytes for one in gone) >= min(needed, unused)
    kept = [one for one in cached if not one.in_use and one not in gone]
    assert all(a.last_used_s <= b.last_used_s for a in gone for b in kept)
    assert not gone or sum(one.bytes for one in gone[:-1]) < needed, "no more than is needed"
    left = sum(one.bytes for one in cached) - sum(one.bytes for one in over_budget(cached, needed))
    assert left <= needed or left == sum(one.bytes for one in cached if one.in_use)


@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 50, 100]), st.integers(0, 8), st.booleans()), max_size=6),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=3),
)
def test_copies_lie_where_there_is_room_and_for_every_gang(
    nodes: list[tuple[int | None, int, bool]], asked: int, gangs: list[tuple[int, int]]
) -> None:
    found = [CacheNode(str(n), room, gpus * 1000, fits) for n, (room, gpus, fits) in enumerate(nodes)]
    wanted = copies_needed(asked, [Gang(pods, gpus * 1000) for pods, gpus in gangs], found)
    assert wanted <= sum(one.fits for one in found)
    places = choose_nodes(wanted, found, {"0"}, 60)
    assert len(places) == len(set(places))
    by_name = {one.name: one for one in found}
    for place in places:
        node = by_name[place]
        assert node.fits
        assert place == "0" or node.room_bytes is None or node.room_bytes >= 60
    usable = [one for one in found if one.fits and (one.name == "0" or one.room_bytes is None or one.room_bytes >= 60)]
    assert len(places) == min(wanted, len(usable)) or "0" in places


def test_nobody_is_stopped_who_has_begun_opted_out_or_is_not_ours_to_stop() -> None:
    for mode, ready, *flags in itertools.product(Mode, (False, True), *[(False, True)] * 14):
        check(DataWorkload(mode, *flags), ready=ready)


def check(asker: DataWorkload, *, ready: bool) -> None:
    verdict = hold_for(asker, ready=ready)
    stops = verdict in (Hold.HOLD, Hold.ANNOTATE, Hold.STOP, Hold.PARK)
    if stops:
        about_to_start = asker.ours and (asker.stopping or (asker.parked and asker.has_quota))
        assert not (asker.runs and asker.begun) or about_to_start
        given_back = asker.ours and asker.parked and asker.has_quota
        assert given_back or (asker.managed and asker.mode is Mode.ENFORCE and not asker.opted_out)
        assert given_back or not ready
        assert not asker.finished
        assert asker.ours or not asker.others
    if asker.ours and (ready or asker.finished or asker.mode is not Mode.ENFORCE or not asker.managed):
        stops_first = asker.queued and asker.parked and asker.has_quota and not asker.finished
        assert verdict is Hold.RELEASE or stops_first
    if verdict is Hold.RELEASE:
        assert asker.ours


@pytest.mark.parametrize(
    ("mode", "expected"), [(Mode.OBSERVE, Hold.LEAVE), (Mode.ANNOTATE, Hold.LEAVE), (Mode.ENFORCE, Hold.HOLD)]
)
def test_only_enforce_holds(mode: Mode, expected: Hold) -> None:
    assert hold_for(DataWorkload(mode, True, queued=True), ready=False) is expected
