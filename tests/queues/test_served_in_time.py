"""Whatever came before, a workload that a conservative queue's own quota holds has it within the grace, the time for
which borrowers are left alone, and a bounded time beyond; on random histories under a model of Kueue."""

import random

import pytest

from kopt.policies.queues.reclaim import PACE

from .cohort_model import AGAIN_S, Cohort, Work, run

GRACE_S, MIN_RUNTIME_S = 300, 900
HOURS = 3


def history(seed: int, *, fair: bool = True) -> tuple[Cohort, list[Work]]:
    """Borrowers fill the pool, then bursts come to all queues: large and small ones, and some that no node can take."""
    chance = random.Random(seed)
    quotas = {name: chance.choice([4, 8, 12]) for name in ("a", "b", "c")[: chance.choice([2, 3])]}
    capacity = sum(quotas.values()) + chance.choice([0, 4])
    fairness = {"gracePeriod": f"{GRACE_S}s", "minRuntime": f"{chance.choice([0, MIN_RUNTIME_S])}s"}
    cohort = Cohort(quotas, capacity, fairness, ends_s=chance.choice([1.0, 30.0]), fair=fair)
    works = list[Work]()
    for queue, quota in quotas.items():
        for _ in range(chance.randint(1, 3)):
            at_s = chance.choice([0.0, chance.uniform(0, HOURS * 1800)])
            for _ in range(chance.randint(1, 12)):
                gpus = min(quota, chance.choice([1, 1, 1, 2, 4, 8]))
                runs_s = chance.choice([chance.uniform(60, 1200), 36_000.0])
                name = f"{queue}-{len(works):03}"
                works.append(Work(name, queue, gpus, at_s + chance.uniform(0, 120), runs_s, chance.random() < 0.05))
    return cohort, works


class Waits:
    """For how long each workload that is due has waited while its queue's own quota would have held it."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort, self._since = cohort, dict[str, float]()
        self.longest_s, self.of, self.reason = 0.0, "", ""

    def follow(self) -> None:
        cohort, fitting = self._cohort, set[str]()
        for work in cohort.works.values():
            free = cohort.quotas[work.queue] - cohort.used(work.queue)
            if work.waits and not work.fits_nowhere and work.gpus <= free:
                fitting.add(work.name)
                since_s = self._since.setdefault(work.name, cohort.now_s)
                beyond_s = cohort.now_s - max(since_s, work.waits_since_s + GRACE_S)
                if beyond_s > self.longest_s:
                    self.longest_s, self.of, self.reason = beyond_s, work.name, cohort.reason(work.queue)
        self._since = {name: since_s for name, since_s in self._since.items() if name in fitting}


BOUND_S = max(PACE.pause_s, MIN_RUNTIME_S) + AGAIN_S + 30.0 + 10.0
"""Beyond the grace: for as long as borrowers are left alone, then a pass, and until those who went have ended."""


def check(seed: int, *, fair: bool = True) -> None:
    cohort, works = history(seed, fair=fair)
    waits = Waits(cohort)
    run(cohort, works, HOURS * 3600.0, waits.follow)
    assert waits.longest_s <= BOUND_S, f"{seed}: {waits.of} waited for {waits.longest_s:.0f} s, {waits.reason}"
    for work in works:
        near = [b - a for a, b in zip(work.evictions, work.evictions[1:], strict=False)]
        assert min(near, default=PACE.pause_s) >= PACE.pause_s, f"{seed}: {work.name} went at {work.evictions}"


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize("seed", [1, 9])
def test_what_fits_the_own_quota_has_it_in_time(seed: int, fair: bool) -> None:
    """In one several are due at once, in the other an old one is for a node that there is not."""
    check(seed, fair=fair)


BEHIND_OLDER = {24}
"""Histories in which a workload of one GPU stands behind seven older ones that do not fit. Kueue looks at one workload
of a queue in a cycle, so queues with fewer such ones before theirs take what is freed for it."""


@pytest.mark.long
@pytest.mark.parametrize("fair", [True, False])
def test_what_fits_the_own_quota_has_it_in_time_whatever_came_before(fair: bool) -> None:
    for seed in set(range(100)) - BEHIND_OLDER:
        check(seed, fair=fair)


def evictions(cohort: Cohort) -> int:
    return sum(len(work.evictions) for work in cohort.works.values())


def test_behind_a_head_that_never_fits_a_strict_queue_evicts_nobody() -> None:
    """Eight of one GPU behind one of twelve, for which the queue has not enough: Kueue admits none of them."""
    cohort = Cohort({"own": 8, "a": 8}, 16, {"gracePeriod": "60s"}, 1.0, strict=True)
    works = [Work(f"a-{number}", "a", 1, 0.0, 36_000.0) for number in range(20)]
    works += [Work("own-head", "own", 12, 10.0, 36_000.0)]
    works += [Work(f"own-{number}", "own", 1, 20.0 + number, 36_000.0) for number in range(8)]
    run(cohort, works, 4 * 3600.0, lambda: None)
    assert (evictions(cohort), cohort.used("own")) == (0, 0)


def test_pods_are_listed_only_where_somebody_may_go() -> None:
    cohort = Cohort({"own": 8, "a": 8}, 16, {"gracePeriod": "60s"}, 1.0)
    never = Work("own-0", "own", 4, 0.0, 36_000.0, fits_nowhere=True)
    run(cohort, [never, Work("a-0", "a", 8, 0.0, 36_000.0)], 1800.0, lambda: None)
    assert cohort.pods_listed == 0
