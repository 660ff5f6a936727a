"""Who makes room is the same as by plain lists, in whatever order a room is asked, and takes time as there are
borrowers and not as their square."""

import random
import time
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kopt.cluster.workloads.kueue.queues import demand_of
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.queues.borrowers import LiveQuotas, QuotaRoom
from kopt.policies.queues.victims import BorrowedRun, Room, Safety, victims_of
from kopt.policies.quota import Mode, assign

from .cohort_model import GPU_RESOURCE, Work
from .plain_victims import plain_victims_of
from .test_reclaim import PlainRoom, groups, situations

Sizes = Sequence[tuple[str, int]]


def live_room(works: Sequence[Work], quotas: dict[str, int], wanted: int) -> QuotaRoom:
    """``a`` and ``b`` have a cohort of their own below the root, ``c`` does not."""
    objects: dict[Any, Any] = {
        ("ClusterQueue", "", name): {
            "metadata": {"name": name},
            "spec": {"cohortName": "mid" if name in "ab" else "root", **groups(quota)},
        }
        for name, quota in quotas.items()
    }
    objects["ResourceFlavor", "", "default"] = {"metadata": {"name": "default"}, "spec": {}}
    objects["Cohort", "", "mid"] = {"metadata": {"name": "mid"}, "spec": {"parentName": "root", **groups(1)}}
    live = SimpleNamespace(objects=objects)
    admitted = [read_kueue_workload(work.document) for work in works]
    waits = read_kueue_workload(Work("own-0", "own", wanted, 0.0, 60.0).document)
    return QuotaRoom(LiveQuotas(live, admitted), "own", waits)  # type: ignore[arg-type]


class Afresh:
    """A room that follows nobody: each question goes to a tree that was just built."""

    def __init__(self, *about: Any) -> None:
        self._about = about

    def fits(self, evicted: Collection[str]) -> bool:
        return live_room(*self._about).fits(evicted)

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        return live_room(*self._about).lends(name, evicted)

    def shortfall(self, name: str, evicted: Collection[str]) -> float:
        return live_room(*self._about).shortfall(name, evicted)


@given(situations(), st.sets(st.integers(0, 6)))
def test_the_choice_is_that_of_plain_lists(situation: tuple[list[BorrowedRun], PlainRoom], ended: set[int]) -> None:
    runs, room = situation
    runs = [ending(run) if number in ended else run for number, run in enumerate(runs)]
    assert victims_of(runs, room) == plain_victims_of(runs, room)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 1, 2, 4])), max_size=8),
    st.lists(st.tuples(st.sampled_from(Safety), st.booleans()), min_size=8, max_size=8),
    st.fixed_dictionaries({name: st.integers(0, 4) for name in ("own", "a", "b", "c")}),
    st.integers(1, 6),
)
def test_so_it_is_with_the_quotas_of_kueue(
    sizes: Sizes, states: Sequence[tuple[Safety, bool]], quotas: dict[str, int], wanted: int
) -> None:
    works = [Work(f"run-{n}", queue, gpus, 0.0, 60.0, reserved_s=0.0) for n, (queue, gpus) in enumerate(sizes)]
    runs = [
        BorrowedRun(f"team/{work.name}", float(number), 0, safety, terminating=is_terminating)
        for number, (work, (safety, is_terminating)) in enumerate(zip(works, states, strict=False))
    ]
    room = live_room(works, quotas, wanted)
    expected = plain_victims_of(runs, Afresh(works, quotas, wanted))
    assert victims_of(runs, room) == expected
    assert victims_of(runs, room) == expected, "the room is as it was for the next question"


@given(
    st.lists(st.tuples(st.sampled_from(["own", "a"]), st.sampled_from("xy"), st.integers(1, 4), st.integers(-1, 1))),
    st.fixed_dictionaries({name: st.tuples(st.integers(0, 8), st.integers(0, 8)) for name in ("own", "a")}),
    st.sampled_from(["Never", "LowerPriority"]),
    st.sampled_from(["Never", "Any"]),
    st.sampled_from(["TryNextFlavor", "Preempt"]),
    st.sets(st.integers(0, 5)),
)
@example([("a", "x", 4, 0)], {"own": (4, 8), "a": (0, 0)}, "Never", "Any", "Preempt", set())
@example([("own", "x", 4, -1)], {"own": (4, 8), "a": (0, 0)}, "LowerPriority", "Never", "Preempt", set())
def test_whether_it_fits_hangs_on_those_alone_whom_kueue_could_evict(
    admitted: Sequence[tuple[str, str, int, int]],
    quotas: dict[str, tuple[int, int]],
    within: str,
    reclaim: str,
    stops: str,
    gone: set[int],
) -> None:
    """Two flavours, in the first of which Kueue may have to evict somebody, and stops there or looks further."""
    objects: dict[Any, Any] = {
        ("ResourceFlavor", "", name): {"metadata": {"name": name}, "spec": {}} for name in "xy"
    } | {("ClusterQueue", "", name): two_flavors(name, sizes, within, reclaim, stops) for name, sizes in quotas.items()}
    works = []
    for number, (queue, flavor, gpus, priority) in enumerate(admitted):
        document = Work(f"run-{number}", queue, gpus, 0.0, 60.0, reserved_s=0.0).document
        document["status"]["admission"]["podSetAssignments"][0]["flavors"] = {GPU_RESOURCE: flavor}
        document["spec"]["priority"] = priority
        works.append(read_kueue_workload(document))
    live = LiveQuotas(SimpleNamespace(objects=objects), works)  # type: ignore[arg-type]
    waits, names = read_kueue_workload(Work("own-w", "own", 3, 9.0, 60.0).document), [f"team/run-{n}" for n in gone]
    own = live.queues["own"]
    full = assign(demand_of(waits, own, live.flavors), own.rules, live.without(names), live.remaining())
    assert QuotaRoom(live, "own", waits).fits(names) == (full.mode is Mode.FIT)


def two_flavors(name: str, sizes: tuple[int, int], within: str, reclaim: str, stops: str) -> dict[str, Any]:
    flavors = [
        {"name": flavor, "resources": [{"name": GPU_RESOURCE, "nominalQuota": str(size)}]}
        for flavor, size in zip("xy", sizes, strict=True)
    ]
    spec = {
        "cohortName": "root",
        "resourceGroups": [{"coveredResources": [GPU_RESOURCE], "flavors": flavors}],
        "preemption": {"withinClusterQueue": within, "reclaimWithinCohort": reclaim},
        "flavorFungibility": {"whenCanPreempt": stops, "whenCanBorrow": "MayStopSearch"},
    }
    return {"metadata": {"name": name}, "spec": spec}


def ending(run: BorrowedRun) -> BorrowedRun:
    return BorrowedRun(run.name, run.started_s, run.min_runtime_s, run.safety, run.lost_s, terminating=True)


def crowd(number: int) -> tuple[list[BorrowedRun], Room]:
    """Borrowers of one GPU in three queues, half of which have to go; a multiple of twelve."""
    chance = random.Random(number)
    works = [Work(f"run-{n}", "abc"[n % 3], 1, 0.0, 60.0, reserved_s=0.0) for n in range(number)]
    runs = [BorrowedRun(f"team/{work.name}", 0.0, 0, Safety.UNSAFE, chance.random()) for work in works]
    quotas = {"own": number // 2, **dict.fromkeys("abc", number // 6)}
    return runs, live_room(works, quotas, number // 2)


def cpu_s(number: int) -> float:
    runs, room = crowd(number)
    began_s = time.process_time()
    assert len(victims_of(runs, room) or ()) == number // 2 - 1, "their cohort has one GPU to spare"
    return time.process_time() - began_s


def test_time_grows_as_the_borrowers_and_not_as_their_square() -> None:
    few_s = min(cpu_s(120) for _ in range(3))
    assert cpu_s(960) < 24 * few_s, "eight times the borrowers; their square is 64"
