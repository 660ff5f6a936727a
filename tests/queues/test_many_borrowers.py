"""Who makes room is the same whether a room follows what is tried or is built anew for each question, and each borrower
is looked at a bounded number of times."""

import random
from collections.abc import Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kopt.cluster.workloads.kueue.queues import demand_of
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.controllers.queues.borrowers import LiveQuotas, QuotaRoom
from kopt.core.scheduling.quota import Admitted
from kopt.policies.queues.balance import SharedRun, Shares, balancing_victims
from kopt.policies.queues.victims import BorrowedRun, Gone, Safety, victims_of
from kopt.policies.quota import Mode, assign

from .cohort_model import GPU_RESOURCE, Work
from .test_reclaim import groups

Sizes = Sequence[tuple[str, int]]
PREEMPTION = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Never"}
"""As ``policies.queues.kueue`` has it in conservative queues."""


def live_room(works: Sequence[Work], quotas: dict[str, int], wanted: int) -> QuotaRoom:
    """``a`` and ``b`` have a cohort of their own below the root, ``c`` does not."""
    objects: dict[Any, Any] = {
        ("ClusterQueue", "", name): {
            "metadata": {"name": name},
            "spec": {"cohortName": "mid" if name in "ab" else "root", **groups(quota), "preemption": PREEMPTION},
        }
        for name, quota in quotas.items()
    }
    objects["ResourceFlavor", "", "default"] = {"metadata": {"name": "default"}, "spec": {}}
    objects["Cohort", "", "mid"] = {"metadata": {"name": "mid"}, "spec": {"parentName": "root", **groups(1)}}
    live = SimpleNamespace(objects=objects)
    admitted = [read_kueue_workload(work.document) for work in works]
    waits = read_kueue_workload(Work("own-0", "own", wanted, 0.0, 60.0).document)
    quotas = LiveQuotas(live, admitted)  # type: ignore[arg-type]
    quotas.admitted = Counted(quotas.admitted)
    return QuotaRoom(quotas, "own", waits)


class Counted(dict[str, Admitted]):
    """Who is admitted; ``looks``: entries that were looked at."""

    looks = 0

    def __getitem__(self, name: str) -> Admitted:
        self.looks += 1
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.looks += 1
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self.looks += len(self)
        return super().__iter__()

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


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


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 1, 2, 4])), max_size=8),
    st.lists(st.tuples(st.sampled_from(Safety), st.booleans()), min_size=8, max_size=8),
    st.fixed_dictionaries({name: st.integers(0, 4) for name in ("own", "a", "b", "c")}),
    st.integers(1, 6),
)
def test_a_room_that_follows_answers_as_those_that_are_built_anew(
    sizes: Sizes, states: Sequence[tuple[Safety, bool]], quotas: dict[str, int], wanted: int
) -> None:
    works = [Work(f"run-{n}", queue, gpus, 0.0, 60.0, reserved_s=0.0) for n, (queue, gpus) in enumerate(sizes)]
    runs = [
        BorrowedRun(f"team/{work.name}", float(number), 0, safety, terminating=is_terminating)
        for number, (work, (safety, is_terminating)) in enumerate(zip(works, states, strict=False))
    ]
    room, afresh = live_room(works, quotas, wanted), Afresh(works, quotas, wanted)
    victims = victims_of(runs, room)
    assert victims == victims_of(runs, afresh)
    assert victims == victims_of(runs, room), "the room is as it was for the next question"
    shared = [SharedRun(run, work.queue, 1000 * work.gpus) for run, work in zip(runs, works, strict=True)]
    use = {name: sum(each.amount for each in shared if each.queue == name) for name in quotas}
    shares = Shares(use, {name: 1000 * quota for name, quota in quotas.items()})
    near = balancing_victims("own", 1000 * wanted, shared, shares, room)
    assert near == balancing_victims("own", 1000 * wanted, shared, shares, afresh)
    ends = [run.name for run in runs if run.terminating]
    for who in (each for each in (victims, near) if each is not None):
        assert afresh.fits([*ends, *(run.name for run in who)])
        for spared in who:
            assert not afresh.fits([*ends, *(run.name for run in who if run is not spared)]), "nobody goes for nothing"


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


class CountedRoom:
    """Counts what a room looks at, and the names of those who are gone that are listed for a question."""

    def __init__(self, room: QuotaRoom) -> None:
        self._room, self._listed = room, 0

    @property
    def looks(self) -> int:
        admitted = self._room._quotas.admitted
        assert isinstance(admitted, Counted)
        return admitted.looks + self._listed

    def fits(self, evicted: Collection[str]) -> bool:
        return self._room.fits(self._list(evicted))

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        return self._room.lends(name, self._list(evicted))

    def shortfall(self, name: str, evicted: Collection[str]) -> float:
        return self._room.shortfall(name, self._list(evicted))

    def _list(self, evicted: Collection[str]) -> Collection[str]:
        self._listed += 0 if isinstance(evicted, Gone) else len(evicted)
        return evicted


def crowd(number: int) -> tuple[list[BorrowedRun], CountedRoom]:
    """Borrowers of one GPU in three queues, half of which have to go; a multiple of twelve."""
    chance = random.Random(number)
    works = [Work(f"run-{n}", "abc"[n % 3], 1, 0.0, 60.0, reserved_s=0.0) for n in range(number)]
    runs = [BorrowedRun(f"team/{work.name}", 0.0, 0, Safety.UNSAFE, chance.random()) for work in works]
    quotas = {"own": number // 2, **dict.fromkeys("abc", number // 6)}
    return runs, CountedRoom(live_room(works, quotas, number // 2))


def looks(number: int) -> int:
    runs, room = crowd(number)
    assert len(victims_of(runs, room) or ()) == number // 2 - 1, "their cohort has one GPU to spare"
    return room.looks


def test_what_is_looked_at_grows_as_the_borrowers_and_not_as_their_square() -> None:
    assert looks(480) < 9 * looks(60), "eight times the borrowers; their square is 64"
