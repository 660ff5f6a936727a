"""A conservative queue takes its quota back after the grace, from nobody in its minimum run time or in a write, from
those with a safe checkpoint first, and not in turns."""

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.queues.borrowers import LiveQuotas, QuotaRoom
from kopt.core.workload.save_state import SaveState
from kopt.policies.queues.reclaim import PACE, OwnerState, ReclaimDecision, delayed_reclaim
from kopt.policies.queues.victims import BorrowedRun, Safety, victims_of

from .cohort_model import Work

LONGEST_S, PAUSE_S = PACE.longest_s, PACE.pause_s
TIMES = st.floats(0.0, 5000.0, allow_nan=False)
SAVES = {
    Safety.SAFE: [SaveState.UNASKABLE, SaveState.SAVED, SaveState.EXPIRED],
    Safety.SAVES: [SaveState.ASKABLE, SaveState.ASKED, SaveState.UNASKABLE],
    Safety.UNSAFE: [SaveState.UNASKABLE, SaveState.EXPIRED],
}


@dataclass(frozen=True)
class PlainRoom:
    """Runs have ``gpus`` in queues that borrow, above a quota of eight; ``wanted`` GPUs are waited for."""

    gpus: dict[str, int]
    queues: dict[str, str]
    borrowed: dict[str, int]
    wanted: int

    def fits(self, gone: Collection[str]) -> bool:
        return sum(self.gpus[name] for name in gone) >= self.wanted

    def lends(self, name: str, gone: Collection[str]) -> bool:
        queue = self.queues[name]
        return self.borrowed[queue] > sum(self.gpus[other] for other in gone if self.queues[other] == queue)

    def shortfall(self, name: str, gone: Collection[str]) -> float:
        queue = self.queues[name]
        left = self.borrowed[queue] - sum(self.gpus[other] for other in gone if self.queues[other] == queue)
        return max(0, self.gpus[name] - left) / 8


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[BorrowedRun], PlainRoom]:
    runs, gpus, queues = list[BorrowedRun](), dict[str, int](), dict[str, str]()
    for number in range(draw(st.integers(0, 7))):
        safety = draw(st.sampled_from(Safety))
        run = BorrowedRun(
            f"team/run-{number}",
            draw(TIMES),
            draw(st.sampled_from([0, 300, 3600])),
            safety,
            draw(st.floats(0.0, 1000.0)),
            draw(st.sampled_from(SAVES[safety])),
            draw(st.booleans()),
        )
        runs.append(run)
        gpus[run.name], queues[run.name] = draw(st.integers(1, 8)), draw(st.sampled_from("ab"))
    borrowed = {queue: draw(st.integers(0, 16)) for queue in "ab"}
    return runs, PlainRoom(gpus, queues, borrowed, draw(st.integers(1, 12)))


def protected(run: BorrowedRun, now_s: float) -> bool:
    return now_s - run.started_s < max(run.min_runtime_s, PAUSE_S if run.was_evicted else 0)


@given(situations())
def test_nobody_unsafe_goes_while_others_would_do_and_nobody_for_nothing(
    situation: tuple[list[BorrowedRun], PlainRoom],
) -> None:
    runs, room = situation
    victims = victims_of(runs, room)
    for worst in (Safety.SAFE, Safety.SAVES):
        rest = victims_of([run for run in runs if run.safety <= worst], room)
        if rest is not None and not breaks(rest, room):
            assert victims is not None
            assert all(run.safety <= worst for run in victims)
            assert not breaks(victims, room)
    for run in victims or ():
        assert not room.fits([other.name for other in victims or () if other is not run])
    assert victims is None or room.fits([run.name for run in victims])


@given(situations())
def test_no_queue_is_below_its_quota_while_any_other_selection_would_do(
    situation: tuple[list[BorrowedRun], PlainRoom],
) -> None:
    runs, room = situation
    keeping = any(
        room.fits([run.name for run in some]) and not breaks(some, room)
        for number in range(len(runs) + 1)
        for some in itertools.combinations(runs, number)
    )
    victims = victims_of(runs, room)
    assert keeping == (victims is not None and not breaks(victims, room))


def test_a_small_job_stays_where_a_large_one_alone_fits_what_its_queue_borrows() -> None:
    x, y, z = (BorrowedRun(name, 0.0, lost_s=lost_s) for name, lost_s in (("a/x", 1.0), ("a/y", 2.0), ("b/z", 3.0)))
    room = PlainRoom({"a/x": 3, "a/y": 4, "b/z": 1}, {"a/x": "a", "a/y": "a", "b/z": "b"}, {"a": 4, "b": 1}, 5)
    assert victims_of([x, y, z], room) == (y, z)


def test_the_quota_of_a_cohort_counts_beside_that_of_its_queues() -> None:
    """A leaf without quota has all nine GPUs of a cohort of eight: without them the cohort lacks all of its quota."""
    own, cohort = {"cohortName": "root", **groups(8)}, {"parentName": "root", **groups(8)}
    objects = {
        ("ClusterQueue", "", "own"): {"metadata": {"name": "own"}, "spec": own},
        ("ClusterQueue", "", "leaf"): {"metadata": {"name": "leaf"}, "spec": {"cohortName": "mid", **groups(0)}},
        ("Cohort", "", "mid"): {"metadata": {"name": "mid"}, "spec": cohort},
    }
    waits = Work("own-0", "own", 8, 0.0, 60.0)
    nine = Work("leaf-0", "leaf", 9, 0.0, 60.0, reserved_s=0.0)
    admitted = [read_kueue_workload(nine.document)]
    quotas = LiveQuotas(SimpleNamespace(objects=objects), admitted)  # type: ignore[arg-type]
    room = QuotaRoom(quotas, "own", read_kueue_workload(waits.document))
    assert room.lends("team/leaf-0", [])
    assert room.shortfall("team/leaf-0", []) == 1.0


def groups(gpus: int) -> dict[str, Any]:
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}]
    flavors = [{"name": "default", "resources": resources}]
    return {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]}


def breaks(victims: Sequence[BorrowedRun], room: PlainRoom) -> bool:
    """Whether a queue is below its quota without them."""
    gone = Counter[str]()
    for run in victims:
        gone[room.queues[run.name]] += room.gpus[run.name]
    return any(gone[queue] > borrowed for queue, borrowed in room.borrowed.items())


def test_a_large_job_of_a_queue_that_borrows_little_stays_while_small_ones_would_do() -> None:
    """Without the job of sixteen its queue would be fifteen below its own quota, for one GPU of another's."""
    large, small = BorrowedRun("a/large", 50.0), BorrowedRun("a/small", 10.0, lost_s=90.0)
    room = PlainRoom({"a/large": 16, "a/small": 1}, {"a/large": "a", "a/small": "a"}, {"a": 1}, 1)
    assert victims_of([large, small], room) == (small,)
    assert victims_of([large], room) == (large,), "the other queue's quota is as good"


@given(situations(), st.none() | TIMES, st.none() | TIMES, st.none() | TIMES, TIMES)
def test_it_evicts_only_when_every_rule_lets_it(
    situation: tuple[list[BorrowedRun], PlainRoom],
    waits_s: float | None,
    reclaimed_s: float | None,
    attempted_s: float | None,
    now_s: float,
) -> None:
    runs, room = situation
    owner = OwnerState("own", 600, waits_s, reclaimed_s, attempted_s)
    decision = delayed_reclaim(owner, runs, room, now_s)
    by_name = {run.name: run for run in runs}
    assert decision.again_s > 0
    assert decision.reclaims == bool(decision.victims)
    if decision.victims or decision.saves:
        assert waits_s is not None
        assert now_s - waits_s >= 600
        # What waited when the last reclaim began does not wait for the next one.
        assert reclaimed_s is None or now_s - reclaimed_s >= PAUSE_S or waits_s <= reclaimed_s
        # Where others get what victims leave, there are no more for a while.
        assert attempted_s is None or not LONGEST_S <= now_s - attempted_s < PAUSE_S
        assert not any(protected(by_name[name], now_s) for name in (*decision.victims, *decision.saves))
    for name in decision.victims:
        assert by_name[name].safety is not Safety.SAVES
        assert by_name[name].save not in (SaveState.ASKABLE, SaveState.ASKED)
    assert all(by_name[name].save is SaveState.ASKABLE for name in decision.saves)


@given(situations(), TIMES)
def test_what_waits_is_served_in_the_end_if_borrowers_suffice(
    situation: tuple[list[BorrowedRun], PlainRoom], waits_s: float
) -> None:
    """Looked at again when the last decision says, with borrowers that save when they are asked."""
    runs, room = situation
    now_s, decision = waits_s, ReclaimDecision(False, delayed_reclaim(OwnerState("own"), runs, room, 0).reason)
    for _ in range(3 * len(runs) + 4):
        decision = delayed_reclaim(OwnerState("own", 600, waits_s), runs, room, now_s)
        if decision.reclaims or decision.again_s == float("inf"):
            break
        saved = {"safety": Safety.SAFE, "save": SaveState.SAVED}
        runs = [replace(run, **saved) if run.safety is Safety.SAVES else run for run in runs]
        now_s += decision.again_s + 0.001
    assert decision.reclaims == (victims_of(runs, room) is not None)


def test_an_eviction_that_does_not_get_it_done_is_tried_again_after_the_pause() -> None:
    run, room = BorrowedRun("team/run", 0.0), PlainRoom({"team/run": 1}, {"team/run": "a"}, {"a": 1}, 1)
    when = {
        at_s: delayed_reclaim(OwnerState("own", 0, -1.0, 0.0, 0.0), [run], room, at_s)
        for at_s in (30.0, 60.0, 599.0, 600.0)
    }
    assert {at_s: decision.reclaims for at_s, decision in when.items()} == {
        30.0: True,
        60.0: False,
        599.0: False,
        600.0: True,
    }
    assert when[599.0].reason.code == "BACKS_OFF"


def test_the_pause_grows_with_each_attempt_in_vain() -> None:
    run, room = BorrowedRun("team/run", 0.0), PlainRoom({"team/run": 1}, {"team/run": "a"}, {"a": 1}, 1)
    for attempts, pause_s in ((1, 600.0), (2, 1200.0), (3, 2400.0), (9, 14_400.0)):
        owner = OwnerState("own", 0, 0.0, attempted_s=0.0, attempts=attempts)
        decision = delayed_reclaim(owner, [run], room, 60.0)
        assert (decision.reason.code, decision.again_s) == ("BACKS_OFF", pause_s - 60.0)
        assert delayed_reclaim(owner, [run], room, pause_s).reclaims


def test_what_came_after_a_reclaim_backs_off_and_what_waited_then_does_not() -> None:
    run, room = BorrowedRun("team/run", 0.0), PlainRoom({"team/run": 1}, {"team/run": "a"}, {"a": 1}, 1)

    def at(waits_s: float, now_s: float) -> str:
        return delayed_reclaim(OwnerState("own", 600, waits_s, 1000.0), [run], room, now_s).reason.code

    assert (at(990.0, 1580.0), at(990.0, 1590.0)) == ("IN_GRACE", "RECLAIMS")
    assert delayed_reclaim(OwnerState("own", 2, 1001.0, 1000.0), [run], room, 1003.0).reason.code == "BACKS_OFF"
    assert delayed_reclaim(OwnerState("own", 2, 1001.0, 1000.0), [run], room, 1600.0).reason.code == "RECLAIMS"


@pytest.mark.parametrize("by_s", [10.0, PAUSE_S - 1])
def test_who_was_evicted_is_left_alone_for_a_pause_whoever_wants_its_quota_back(by_s: float) -> None:
    run = BorrowedRun("team/run", 0.0, was_evicted=True)
    room = PlainRoom({"team/run": 1}, {"team/run": "a"}, {"a": 1}, 1)
    for owner in ("first", "second"):
        decision = delayed_reclaim(OwnerState(owner, 0, 0.0), [run], room, by_s)
        assert (decision.reclaims, decision.reason.code) == (False, "IN_MIN_RUNTIME")
    assert delayed_reclaim(OwnerState("second", 0, 0.0), [run], room, PAUSE_S).victims == ("team/run",)
